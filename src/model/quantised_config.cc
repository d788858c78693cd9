// What a config.json says of how its weights are quantised.
#include <fmt/format.h>

#include "base/index.h"
#include "base/json_reader.h"
#include "base/message.h"
#include "model/quantised.h"
#include "unpack/error.h"

namespace unpack::model {

std::string Quantisation::name() const {
  switch (method) {
    case QuantMethod::fp8:
      return "FP8";
    case QuantMethod::bitsandbytes:
      return "bitsandbytes 4 bit";
    case QuantMethod::awq:
      return "AWQ 4 bit";
    case QuantMethod::gptq:
      return "GPTQ 4 bit";
    case QuantMethod::none:
      break;
  }
  return {};
}

Quantisation read_quantisation(const ConfigReader& config, const std::string& family) {
  Quantisation out;
  const auto reader = config.object("quantization_config");
  if (!reader) return out;
  const std::string method = reader->text("quant_method", "unknown method");
  const auto refuse = [&](const std::string& what) {
    config.fail(fmt::format(
        "the checkpoint is quantised ({}), which is not supported; use the original float16, "
        "bfloat16 or float32 checkpoint, or one in FP8, bitsandbytes NF4, AWQ or GPTQ of 4 bits",
        what));
  };
  if (family == "gpt_oss") {
    if (method != "mxfp4") refuse(base::shown(method));
    return out;
  }
  // GPT-2 stores its matrices the other way round, which these layouts do not say.
  if (family == "gpt2") refuse(fmt::format("{} of gpt2", base::shown(method)));
  if (method == "fp8" || method == "fbgemm_fp8") {
    out.method = QuantMethod::fp8;
    if (const std::string format = reader->text("fmt", "e4m3"); format != "e4m3")
      refuse(fmt::format("fp8 of format {}", base::shown(format)));
    const std::vector<Index> block = reader->integers("weight_block_size");
    if (!block.empty()) {
      if (block.size() != 2 || block[0] < 1 || block[1] < 1 || block[0] > ConfigReader::kMaxSize ||
          block[1] > ConfigReader::kMaxSize)
        config.fail("quantization_config.weight_block_size is no pair of sizes");
      out.block[0] = block[0];
      out.block[1] = block[1];
    }
  } else if (method == "compressed-tensors") {
    const std::string format = reader->text("format", "unknown format");
    if (format != "float-quantized")
      refuse(fmt::format("compressed-tensors, {}", base::shown(format)));
    out.method = QuantMethod::fp8;
  } else if (method == "bitsandbytes") {
    if (!reader->flag("load_in_4bit", false)) refuse("bitsandbytes of 8 bits");
    out.method = QuantMethod::bitsandbytes;
  } else if (method == "awq" || method == "gptq") {
    out.method = method == "awq" ? QuantMethod::awq : QuantMethod::gptq;
    const int bits = reader->size("bits", reader->size("w_bit", 4));
    if (bits != 4) refuse(fmt::format("{} of {} bits", method, bits));
    const std::string layout = method == "awq" ? reader->text("version", "gemm")
                                               : reader->text("checkpoint_format", "gptq");
    if (layout != (method == "awq" ? "gemm" : "gptq") && layout != "gptq_v2" && layout != "GEMM")
      refuse(fmt::format("{} in the layout {}", method, base::shown(layout)));
    out.stored_less_one = method == "gptq" && layout != "gptq_v2";
    const Index group =
        reader->integer("group_size").value_or(reader->integer("q_group_size").value_or(128));
    if (group == 0 || group < -1 || group > ConfigReader::kMaxSize)
      config.fail(fmt::format("quantization_config.group_size is {}", group));
    out.group = group < 0 ? 0 : group;
  } else {
    refuse(base::shown(method));
  }
  return out;
}

Quantisation read_quantisation(std::string_view config_json, const std::string& origin) {
  const JsonValue root = base::read_json(config_json, origin);
  if (!root.is_object()) return {};
  const ConfigReader reader(root, origin);
  return read_quantisation(reader, reader.text("model_type", ""));
}

}  // namespace unpack::model

// Tensors of a GGUF file under their Hugging Face names and in their order of rows.
#include <fmt/format.h>

#include <map>

#include "base/index.h"
#include "base/json_reader.h"
#include "base/message.h"
#include "model/assemble.h"
#include "model/gguf_model.h"
#include "unpack/error.h"

namespace unpack::model {
namespace {

using Names = std::map<std::string, std::string, std::less<>>;

const Names kLlamaNames = {{"attn_norm", "input_layernorm"},
                           {"ffn_norm", "post_attention_layernorm"},
                           {"attn_q", "self_attn.q_proj"},
                           {"attn_k", "self_attn.k_proj"},
                           {"attn_v", "self_attn.v_proj"},
                           {"attn_output", "self_attn.o_proj"},
                           {"attn_q_norm", "self_attn.q_norm"},
                           {"attn_k_norm", "self_attn.k_norm"},
                           {"attn_qkv", "self_attn.qkv_proj"},
                           {"ffn_gate", "mlp.gate_proj"},
                           {"ffn_up", "mlp.up_proj"},
                           {"ffn_down", "mlp.down_proj"},
                           {"post_attention_norm", "post_attention_layernorm"},
                           {"post_ffw_norm", "post_feedforward_layernorm"}};
const Names kGpt2Names = {{"attn_norm", "ln_1"},          {"attn_qkv", "attn.c_attn"},
                          {"attn_output", "attn.c_proj"}, {"ffn_norm", "ln_2"},
                          {"ffn_up", "mlp.c_fc"},         {"ffn_down", "mlp.c_proj"}};
const Names kNeoxNames = {
    {"attn_norm", "input_layernorm"},   {"attn_qkv", "attention.query_key_value"},
    {"attn_output", "attention.dense"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_up", "mlp.dense_h_to_4h"},    {"ffn_down", "mlp.dense_4h_to_h"}};

// Row (h, half, i) of [heads, 2, d_head / 2] stands at (h, i, half): a = d_head.
Index unrotated_row(Index row, Index d_head, Index) {
  const Index head = row / d_head, at = row % d_head, half = d_head / 2;
  return head * d_head + at % half * 2 + at / half;
}

// Row (h, part, e) of [heads, 3, d_head] stands at (part, h, e): a = heads, b = d_head.
Index joined_row(Index row, Index heads, Index d_head) {
  const Index head = row / (3 * d_head), part = row / d_head % 3, e = row % d_head;
  return (part * heads + head) * d_head + e;
}

class Mapping {
 public:
  explicit Mapping(const std::shared_ptr<const GgufFiles>& gguf)
      : gguf_(*gguf),
        arch_(gguf->content.metadata.value("general.architecture", std::string())),
        checkpoint_(Checkpoint::empty(gguf->path.string(), gguf)) {}

  Checkpoint run() {
    for (std::size_t i = 0; i < gguf_.content.tensors.size(); ++i) add(i);
    for (const auto& [layer, pair] : gate_up_) add_gate_up(layer, pair);
    return std::move(checkpoint_);
  }

 private:
  struct Source {
    const GgufTensor* tensor = nullptr;
    const MappedFile* file = nullptr;
  };

  Index key(const char* name) const {
    const auto it = gguf_.content.metadata.find(arch_ + "." + name);
    if (it == gguf_.content.metadata.end()) return 0;
    const JsonValue& value = it->is_array() && !it->empty() ? it->front() : *it;
    return value.is_number_integer() ? value.get<Index>() : 0;
  }

  void put(const std::string& name, const Source& source, std::vector<Index> shape,
           std::shared_ptr<const Encoded> encoded, bool transposed = false) {
    const GgufTensor& tensor = *source.tensor;
    Checkpoint::Entry entry;
    entry.origin = gguf_.path.string();
    entry.file = source.file;
    entry.tensor.stored = {tensor.name, tensor.info->dtype.value_or(DType::f32), std::move(shape),
                           tensor.data, tensor.bytes};
    entry.tensor.dtype_name = tensor.info->name;
    entry.tensor.readable = true;
    entry.transposed = transposed;
    if (!encoded && (!tensor.info->dtype || transposed))
      encoded = make_blocks(*tensor.info, tensor.data);
    entry.encoded = std::move(encoded);
    checkpoint_.put(name, std::move(entry));
  }

  std::string model_name(const std::string& name) const {
    const bool gpt2 = arch_ == "gpt2", neox = arch_ == "gptneox";
    if (name == "token_embd.weight")
      return gpt2   ? "transformer.wte.weight"
             : neox ? "gpt_neox.embed_in.weight"
                    : "model.embed_tokens.weight";
    if (name == "position_embd.weight") return "transformer.wpe.weight";
    if (name == "output.weight") return neox ? "embed_out.weight" : "lm_head.weight";
    if (name.starts_with("output_norm."))
      return (gpt2   ? "transformer.ln_f"
              : neox ? "gpt_neox.final_layer_norm"
                     : "model.norm") +
             name.substr(std::string("output_norm").size());
    return {};
  }

  void add(std::size_t index) {
    const Source source{&gguf_.content.tensors[index], gguf_.file_of[index]};
    const GgufTensor& tensor = *source.tensor;
    if (tensor.info == nullptr) {
      throw InputError(fmt::format(
          "{}: tensor {} has the type {}, which is not read; use a file with Q8_0, Q6_K, "
          "Q5_K, Q4_K, Q3_K, Q2_K, Q5_1, Q5_0, Q4_1, Q4_0, BF16, F16 or F32",
          gguf_.path.string(), base::shown(tensor.name), block_name(tensor.type)));
    }
    if (!tensor.name.starts_with("blk.")) {
      if (const std::string name = model_name(tensor.name); !name.empty())
        put(name, source, tensor.shape, {});
      return;
    }
    const std::size_t dot = tensor.name.find('.', 4), end = tensor.name.rfind('.');
    if (dot == std::string::npos || end <= dot) return;
    const std::string layer = tensor.name.substr(4, dot - 4);
    const std::string part = tensor.name.substr(dot + 1, end - dot - 1);
    const std::string kind = tensor.name.substr(end + 1);
    if (layer.empty() || layer.size() > 6 ||
        layer.find_first_not_of("0123456789") != std::string::npos)
      return;
    add_to_layer(source, std::stoi(layer), part, kind);
  }

  void add_to_layer(const Source& source, int layer, const std::string& part,
                    const std::string& kind) {
    const GgufTensor& tensor = *source.tensor;
    const bool gpt2 = arch_ == "gpt2", neox = arch_ == "gptneox";
    const std::string prefix = fmt::format("{}.{}.",
                                           gpt2   ? "transformer.h"
                                           : neox ? "gpt_neox.layers"
                                                  : "model.layers",
                                           layer);
    if (part.ends_with("_exps") || part == "ffn_gate_inp" || part == "attn_sinks")
      return add_expert(source, layer, prefix, part, kind);
    const Names& names = gpt2 ? kGpt2Names : neox ? kNeoxNames : kLlamaNames;
    const auto it = names.find(part);
    if (it == names.end()) return;
    std::string name = it->second;
    const bool gemma = arch_ == "gemma2" || arch_ == "gemma3";
    if (gemma && part == "ffn_norm") name = "pre_feedforward_layernorm";
    if (arch_ == "phi3" && part == "ffn_up") name = "mlp.gate_up_proj";
    std::shared_ptr<const Encoded> encoded;
    const Index columns = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
    const Index heads = key("attention.head_count");
    const Index width = key("embedding_length");
    if (heads < 1 || width < 1) return;
    const Index d_head =
        key("attention.key_length") > 0 ? key("attention.key_length") : width / heads;
    const auto reordered = [&](RowOf row_of, Index rows, Index a, Index b) {
      if (tensor.shape[0] % rows != 0) {
        throw InputError(fmt::format("{}: tensor {} has {} rows, which do not fit the heads",
                                     gguf_.path.string(), base::shown(tensor.name),
                                     tensor.shape[0]));
      }
      encoded = with_rows(make_blocks(*tensor.info, tensor.data), columns, row_of, a, b);
    };
    const bool rotated_pairs = arch_ == "llama" || arch_ == "granite" || arch_ == "smollm3";
    if (rotated_pairs && (part == "attn_q" || part == "attn_k") && d_head % 2 == 0 && d_head > 0)
      reordered(unrotated_row, d_head, d_head, 0);
    if (neox && part == "attn_qkv") reordered(joined_row, 3 * heads * d_head, heads, d_head);
    std::vector<Index> shape = tensor.shape;
    const bool transposed = gpt2 && shape.size() == 2;
    if (transposed) std::swap(shape[0], shape[1]);
    put(prefix + name + "." + kind, source, std::move(shape), std::move(encoded), transposed);
  }

  void add_expert(const Source& source, int layer, const std::string& prefix,
                  const std::string& part, const std::string& kind) {
    const GgufTensor& tensor = *source.tensor;
    if (part == "attn_sinks") return put(prefix + "self_attn.sinks", source, tensor.shape, {});
    const bool oss = arch_ == "gpt-oss", mixtral = arch_ == "llama";
    if (part == "ffn_gate_inp") {
      const char* router = oss ? "mlp.router." : mixtral ? "block_sparse_moe.gate." : "mlp.gate.";
      return put(prefix + router + kind, source, tensor.shape, {});
    }
    if (oss) {
      if (part == "ffn_down_exps") {
        std::vector<Index> shape = tensor.shape;
        const bool matrix = shape.size() == 3;
        if (matrix) std::swap(shape[1], shape[2]);
        return put(prefix + (matrix ? "mlp.experts.down_proj" : "mlp.experts.down_proj_bias"),
                   source, std::move(shape), {}, matrix);
      }
      gate_up_[fmt::format("{}mlp.experts.gate_up_proj{}", prefix, kind == "bias" ? "_bias" : "")]
              [part == "ffn_up_exps" ? 1 : 0] = source;
      return;
    }
    if (tensor.shape.size() != 3 || kind != "weight") return;
    const char* gate = mixtral ? "w1" : "gate_proj";
    const char* up = mixtral ? "w3" : "up_proj";
    const char* down = mixtral ? "w2" : "down_proj";
    const char* name = part == "ffn_gate_exps" ? gate : part == "ffn_up_exps" ? up : down;
    const Index elements = tensor.shape[1] * tensor.shape[2];
    const auto whole = make_blocks(*tensor.info, tensor.data);
    GgufTensor one = tensor;
    for (Index e = 0; e < std::min<Index>(tensor.shape[0], 100'000); ++e) {
      one.bytes = elements / tensor.info->elements * tensor.info->bytes;
      one.data = tensor.data + e * one.bytes;
      put(fmt::format("{}{}.experts.{}.{}.weight", prefix, mixtral ? "block_sparse_moe" : "mlp", e,
                      name),
          {&one, source.file}, {tensor.shape[1], tensor.shape[2]}, {});
    }
  }

  // gpt-oss: [experts, neurons, width] of each become one tensor whose rows take turns.
  void add_gate_up(const std::string& name, const std::map<int, Source>& pair) {
    if (pair.size() != 2) return;
    const Source &gate = pair.at(0), &up = pair.at(1);
    if (gate.tensor->shape != up.tensor->shape) {
      throw InputError(fmt::format("{}: tensors {} and {} differ in shape", gguf_.path.string(),
                                   base::shown(gate.tensor->name), base::shown(up.tensor->name)));
    }
    std::vector<Index> shape = gate.tensor->shape;
    const bool matrix = shape.size() == 3;
    const Index columns = matrix ? shape[2] : 1;
    auto encoded = by_turns(make_blocks(*gate.tensor->info, gate.tensor->data),
                            make_blocks(*up.tensor->info, up.tensor->data), columns);
    shape[1] *= 2;
    if (matrix) std::swap(shape[1], shape[2]);
    put(name, gate, std::move(shape), std::move(encoded), matrix);
  }

  const GgufFiles& gguf_;
  std::string arch_;
  Checkpoint checkpoint_;
  std::map<std::string, std::map<int, Source>> gate_up_;
};

}  // namespace

Checkpoint gguf_checkpoint(const std::shared_ptr<const GgufFiles>& gguf) {
  return Mapping(gguf).run();
}

ModelWeights load_gguf(const std::shared_ptr<const GgufFiles>& gguf, LookAt look) {
  ParsedConfig parsed = parse_family_config(gguf_config(*gguf), gguf->path.string());
  parsed.config.norm_shift = 0;  // these files hold the whole weight of a norm
  ModelWeights model = assemble(parsed, gguf_checkpoint(gguf), look);
  model.config.name = gguf->path.stem().string();
  return model;
}

std::string gguf_quantisation(const Gguf& gguf) {
  std::map<std::string, std::size_t> bytes;
  for (const GgufTensor& tensor : gguf.tensors)
    bytes[std::string(block_name(tensor.type))] += tensor.bytes;
  std::string best = "unknown";
  std::size_t most = 0;
  for (const auto& [name, n] : bytes) {
    if (n > most) best = name, most = n;
  }
  return best;
}

}  // namespace unpack::model

#include <algorithm>
#include <map>

#include "backend/host/panels.h"
#include "base/files.h"
#include "base/index.h"
#include "base/json_reader.h"
#include "model/blocks.h"
#include "model/checkpoint.h"
#include "model/found.h"
#include "model/gguf_model.h"
#include "model/load.h"
#include "model/quantised.h"
#include "unpack/error.h"

namespace unpack::model {
namespace fs = std::filesystem;
namespace {

// Weights in layers, which have a number in their names ("blk.3.", "model.layers.3."), but for
// quantised ones.
struct LayerCounts {
  std::uint64_t plain = 0;
  bool mixture = false;

  void add(const std::string& name, std::uint64_t n, bool quantised) {
    std::size_t from = 0;
    for (std::size_t dot; (dot = name.find('.', from)) != std::string::npos; from = dot + 1) {
      const std::string part = name.substr(from, dot - from);
      if (part.empty() || part.size() > 6 || part.find_first_not_of("0123456789") != part.npos)
        continue;
      if (!quantised) plain += n;
      mixture = mixture || name.find("exp") != std::string::npos;
      return;
    }
  }
};

// The stored weights, and the matrices that the CPU packs in single precision: all of them where
// they stay, none that are quantised or of a larger model, which are read as they are stored, and
// of a mixture the experts that were used last.
std::uint64_t working_memory(const FoundModel& model, const LayerCounts& layers) {
  const std::uint64_t all = sizeof(float) * layers.plain;
  const bool halves = model.bytes < sizeof(float) * model.parameters;
  if (layers.mixture && all > backend::kKeepBytes) return model.bytes + backend::kKeepBytes;
  if (!layers.mixture && all > (halves ? backend::kPackHalves : backend::kKeepBytes))
    return model.bytes;
  // What is stored in single precision is let go once it is packed.
  return halves ? model.bytes + all : sizeof(float) * model.parameters;
}

void examine_gguf(FoundModel& model, const fs::path& file) {
  const auto gguf = open_gguf(file);
  const auto arch = gguf->content.metadata.find("general.architecture");
  if (arch != gguf->content.metadata.end() && arch->is_string())
    model.family = arch->get<std::string>();
  model.quantisation = gguf_quantisation(gguf->content);
  for (const auto& part : gguf->files) model.bytes += part->bytes().size();
  LayerCounts layers;
  for (const GgufTensor& tensor : gguf->content.tensors) {
    if (!tensor.info) continue;
    const std::uint64_t n = tensor.elements();
    model.parameters += n;
    layers.add(tensor.name, n, !tensor.info->dtype);
  }
  model.memory = working_memory(model, layers);
  model.context = parse_config(gguf_config(*gguf), file.string()).n_ctx;
  gguf_checkpoint(gguf);
}

void examine_folder(FoundModel& model, const Quantisation& quantisation) {
  Checkpoint checkpoint = Checkpoint::open(model.folder);
  checkpoint.each([&](const Checkpoint::Entry& e) { model.bytes += e.tensor.stored.bytes; });
  unfold_quantised(checkpoint, quantisation);
  std::map<std::string, std::uint64_t> bytes;
  LayerCounts layers;
  checkpoint.each([&](const Checkpoint::Entry& entry) {
    const StoredTensor& stored = entry.tensor.stored;
    std::uint64_t n = 1;
    for (const Index size : stored.shape) n *= size;
    // Of a quantised one the weights, and not the words they are packed in.
    if (entry.encoded || entry.tensor.readable) {
      model.parameters += n;
      layers.add(stored.name, n, entry.encoded && !is_plain(*entry.encoded));
    }
    bytes[entry.tensor.readable ? to_string(stored.dtype) : entry.tensor.dtype_name] +=
        stored.bytes;
  });
  std::uint64_t most = 0;
  for (const auto& [type, n] : bytes) {
    if (n > most) model.quantisation = type, most = n;
  }
  model.memory = working_memory(model, layers);
  if (quantisation.method != QuantMethod::none) model.quantisation = quantisation.name();
}

}  // namespace

void examine(FoundModel& model) {
  try {
    if (const fs::path file = find_gguf(model.folder); !file.empty()) {
      examine_gguf(model, file);
      return;
    }
    const std::string text = read_text_file(model.folder / "config.json");
    const std::string origin = (model.folder / "config.json").string();
    const JsonValue config = base::read_json(text, origin);
    if (config.is_object() && config.contains("model_type") && config["model_type"].is_string())
      model.family = config["model_type"].get<std::string>();
    model.context = parse_config(text, origin).n_ctx;
    find_weights(model.folder);
    examine_folder(model, read_quantisation(text, origin));
  } catch (const InputError& e) {
    model.problem = e.what();
  }
}

}  // namespace unpack::model

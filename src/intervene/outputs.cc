#include "intervene/outputs.h"

#include <algorithm>

#include "base/index.h"
#include "unpack/error.h"

namespace unpack::interventions {

namespace {

// Where a writer's numbers stand in an array of rows. A head's are its part of z: W_O is linear, so
// that what holds of z holds of what the head writes.
struct Place {
  Index width = 0, offset = 0, size = 0;
};

Place place_of(const Writer& writer, const ModelConfig& c) {
  if (writer.kind != WriterKind::head) return {c.d_model, 0, c.d_model};
  return {static_cast<Index>(c.n_heads) * c.d_head, static_cast<Index>(writer.head) * c.d_head,
          c.d_head};
}

const backend::Array& written(const CleanRun& run, const Writer& writer) {
  if (writer.kind == WriterKind::emb) return run.pass().emb;
  if (writer.kind == WriterKind::pos) return run.pass().pos;
  const forward::LayerPass& layer = run.pass().layers[writer.layer];
  return writer.kind == WriterKind::head ? layer.z : layer.mlp_out;
}

}  // namespace

void OutputChanges::add(const OutputChange& change, std::size_t prompt, Index row) {
  if (change.ablation == Ablation::resample && !other_)
    throw InternalError("[OutputChanges] resampling needs a second run");
  changes_.push_back({change, prompt, row});
}

bool OutputChanges::change_embeddings() const {
  for (const Placed& placed : changes_) {
    if (clean_.writers()[placed.change.writer].terminal()) return true;
  }
  return false;
}

std::vector<std::vector<double>> OutputChanges::replacement(const Placed& placed) const {
  const Writer& writer = clean_.writers()[placed.change.writer];
  const Place place = place_of(writer, clean_.backend().config());
  const backend::Segment& segment = clean_.pass().segments[placed.prompt];
  const std::size_t length = segment.length;
  std::vector<std::vector<double>> rows(length, std::vector<double>(place.size, 0.0));
  if (placed.change.ablation == Ablation::zero) return rows;
  const CleanRun& run = placed.change.ablation == Ablation::resample ? *other_ : clean_;
  const backend::Array& from = written(run, writer);
  const Index begin = run.pass().segments[placed.prompt].begin;
  for (std::size_t s = 0; s < length; ++s)
    clean_.backend().download(from, (begin + s) * place.width + place.offset, rows[s]);
  if (placed.change.ablation == Ablation::resample) return rows;
  std::vector<double> mean(place.size, 0.0);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += row[i] / length;
  }
  rows.assign(length, mean);
  return rows;
}

void OutputChanges::apply(WriterKind kind, int layer, backend::Array& values) const {
  backend::Backend& backend = clean_.backend();
  for (const Placed& placed : changes_) {
    const Writer& writer = clean_.writers()[placed.change.writer];
    if (writer.kind != kind || writer.layer != layer) continue;
    const Place place = place_of(writer, backend.config());
    const std::vector<std::vector<double>> instead = replacement(placed);
    std::vector<double> now(place.size);
    for (std::size_t s = 0; s < instead.size(); ++s) {
      const int position = s;
      if (placed.change.position && *placed.change.position != position) continue;
      const std::vector<int>& except = placed.change.except;
      if (std::find(except.begin(), except.end(), position) != except.end()) continue;
      const Index at = (placed.row + s) * place.width + place.offset;
      backend.download(values, at, now);
      for (std::size_t i = 0; i < now.size(); ++i)
        now[i] = instead[s][i] + placed.change.scale * (now[i] - instead[s][i]);
      backend.upload(values, at, now);
    }
  }
}

}  // namespace unpack::interventions

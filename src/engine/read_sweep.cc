#include "engine/read_sweep.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ranges>

#include "base/formulas.h"
#include "base/index.h"
#include "decompose/host_math.h"
#include "forward/block.h"
#include "unpack/error.h"

namespace unpack::engine {

namespace {

std::vector<int> all_queries(std::size_t length) {
  std::vector<int> queries(length);
  std::iota(queries.begin(), queries.end(), 0);
  return queries;
}

void add_to(const std::vector<double>& from, std::vector<double>& to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

}  // namespace

ReadSweep::ReadSweep(const decompose::Decomposition& d, const Options& options,
                     const ReadStart& start, Keep keep, const RunContext& context)
    : d_(d),
      ops_(d.backend()),
      c_(d.config()),
      o_(options),
      start_(start),
      keep_(keep),
      end_(start.root ? d.writers()[start.root->writer].layer + 1 : c_.n_layers),
      context_(context),
      length_(d_.length()),
      width_(c_.d_model),
      writers_(d_.writers().count()) {
  if (keep != Keep::nothing && d_.by_layer())
    throw InputError(
        "this prompt is traced layer by layer: with direction read its tokens alone can be asked "
        "for; leave paths, roots and edges out (top_paths 0), or take preset paper");
  credit_.assign(length_ * writers_, 0.0);
  keyed_ = credit_;
  first_.assign(writers_, 0.0);
  layers_.resize(c_.n_layers);
  if (start_.root) {
    credit_[at(start_.position, start_.root->writer)] = 1.0;
  } else {
    backend::Array direction = d_.backend().zeros(c_.d_model);
    d_.backend().upload(direction, 0, start_.direction);
    d_.writer_dots(start_.position, direction, first_);
    std::copy(first_.begin(), first_.end(), credit_.begin() + at(start_.position, 0));
  }
  if (keep == Keep::root && start_.root) {
    sweep_root();
  } else {
    sweep_all();
  }
}

void ReadSweep::sweep_all() {
  // Folded reads of the layers above, per position: those that act on a writer alone, and those of
  // keys, whose credit is centred over positions.
  const Writers& writers = d_.writers();
  Values linear(length_ * width_, 0.0), keyed = linear;
  for (int l = end_ - 1; l >= 0; --l) {
    context_.check();
    d_.enter(l);
    Values heads_wrote, mlp_wrote;  // what is read of them
    for (const forward::BlockStep& at : forward::block_steps(c_.block) | std::views::reverse) {
      const bool heads = at.sublayer == backend::Sublayer::attention;
      if (at.step == forward::Step::add) {
        (heads ? heads_wrote : mlp_wrote) = linear;
        take(linear, heads ? writers.head(l, 0) : writers.mlp(l), writers.mlp(l) + !heads);
      }
      // From what it wrote to what it read in one go.
      if (at.step != forward::Step::norm) continue;
      if (heads) {
        attention(l, heads_wrote, keyed, linear);
      } else {
        mlp(l, mlp_wrote, keyed, linear);
      }
    }
  }
  take(linear, 0, writers.terminals());
  add_to(keyed_, credit_);
}

void ReadSweep::sweep_root() {
  const Writer& root = d_.writers()[start_.root->writer];
  const Values none(length_ * width_, 0.0);
  Values keyed = none, below = none;
  d_.enter(root.layer);
  if (root.kind == WriterKind::mlp) {
    mlp(root.layer, none, none, below);
  } else {
    attention(root.layer, none, keyed, below);
  }
}

void ReadSweep::take(const Values& from, int first, int end) {
  Values products;
  d_.position_dots(first, end, from, products);
  const std::size_t count = end - first;
  for (std::size_t s = 0; s < length_; ++s) {
    for (std::size_t i = 0; i < count; ++i) credit_[at(s, first) + i] += products[s * count + i];
  }
}

// Which part of what was read of its keys each writer [S, end - first] passes on: centring took
// from the credit what every source shares, and nobody passes on more than was read.
ReadSweep::Values ReadSweep::key_parts(const Values& keyed, int first, int end) const {
  Values read;
  d_.position_dots(first, end, keyed, read);
  const std::size_t count = end - first;
  for (std::size_t i = 0; i < read.size(); ++i) {
    const double credit = keyed_[at(i / count, first) + i % count];
    read[i] = read[i] == 0 ? 0.0 : std::clamp(credit / read[i], 0.0, 1.0);
  }
  return read;
}

// By what a start's direction is multiplied so that its products with the entries are credit: their
// sum is the credit of a target, and a root's credit 1 is shared out.
double ReadSweep::start_scale(int writer, const Values& products) {
  if (!start_.root) return 1.0;
  double sum = 0, abs = 0;
  for (const double x : products) {
    sum += x;
    abs += std::fabs(x);
  }
  const double by = base::inverse_denom(sum, abs, o_.beta);
  if (start_.root->writer == writer) {
    entries_ = products;
    for (double& x : entries_) x *= by;
  }
  return by;
}

// Where rows[S, D] have anything.
std::vector<int> ReadSweep::positions_of(const Values& rows) const {
  std::vector<int> out;
  for (std::size_t s = 0; s < length_; ++s) {
    const auto row = std::span(rows).subspan(s * width_, width_);
    if (std::any_of(row.begin(), row.end(), [](double x) { return x != 0; })) out.push_back(s);
  }
  return out;
}

// Credit of every neuron at every position, [S, entries].
backend::Array ReadSweep::neuron_entries(int l, const Values& linear, const Values& keyed) {
  backend::Backend& backend = d_.backend();
  const int writer = d_.writers().mlp(l);
  const std::size_t n = c_.layer(l).entries();
  const Values part = key_parts(keyed, writer, writer + 1);
  Values direction = linear;
  for (std::size_t i = 0; i < direction.size(); ++i) direction[i] += part[i / width_] * keyed[i];
  const auto products = [&](const std::vector<int>& queries, std::span<const double> rows) {
    backend::Array given = backend.zeros(std::ssize(rows));
    backend.upload(given, 0, rows);
    backend::Array out = backend.zeros(queries.size() * n);
    backend.mlp_numerators(d_.mlp_view(l), queries, given, out);
    return out;
  };
  if (starts_at(writer)) {
    const double by =
        start_.root
            ? start_scale(writer,
                          decompose::fetch(backend, products({start_.position}, start_.direction)))
            : 1.0;
    double* row = direction.data() + start_.position * width_;
    for (std::size_t i = 0; i < width_; ++i) row[i] += by * start_.direction[i];
  }
  backend::Array entries = backend.zeros(length_ * n);
  const std::vector<int> used = positions_of(direction);
  if (used.empty()) return entries;
  Values rows;
  for (const int s : used) {
    const auto row = direction.begin() + s * c_.d_model;
    rows.insert(rows.end(), row, row + c_.d_model);
  }
  const backend::Array some = products(used, rows);
  for (std::size_t i = 0; i < used.size();) {  // runs of positions at once
    std::size_t end = i + 1;
    while (end < used.size() && used[end] == used[end - 1] + 1) ++end;
    backend.copy(some, i * n, entries, used[i] * n, (end - i) * n);
    i = end;
  }
  return entries;
}

// The same of neurons that nobody reads but the start, at its own position.
backend::ReadOps::NeuronCredit ReadSweep::credit_at_start(int l, backend::MlpSide side,
                                                          const backend::Array& own,
                                                          double weight) {
  backend::Backend& backend = d_.backend();
  const backend::Array coef = backend.zeros(own.size());
  if (!starts_at(d_.writers().mlp(l))) return {coef, std::vector<double>(length_, 0.0), 0, 0};
  const Index n = own.size() / d_.length(), at = start_.position * n;
  const backend::MlpSums sums = d_.mlp_at(l, side, start_.position);
  backend::ReadOps::NeuronCredit passed =
      ops_.neuron_credit(backend.slice(own, at, n), 1, nullptr, &sums, o_.beta, weight);
  backend::Array all = coef;
  backend.copy(passed.coef, 0, all, at, n);
  passed.coef = all;
  return passed;
}

void ReadSweep::mlp(int l, const Values& linear, const Values& keyed, Values& out) {
  const LayerConfig& shape = c_.layer(l);
  const backend::Array entries = neuron_entries(l, linear, keyed);
  const std::vector<backend::MlpReader> readers = backend::mlp_readers(shape);
  const int visible = d_.writers().visible_to_mlp(l);
  const bool linearized = o_.mlp == MlpRule::linearized;
  for (std::size_t index = 0; index < readers.size(); ++index) {
    const backend::MlpSide side = readers[index].side;
    const double weight = backend::reader_weight(o_, shape, index);
    // An expert's credit is that of its neurons.
    const backend::Array own =
        side == backend::MlpSide::router ? ops_.slot_sums(entries, shape.n_neurons) : entries;
    const backend::Array pre = linearized ? d_.pre(l, side, o_.scores) : backend::Array();
    const backend::ReadOps::NeuronCredit passed =
        !linearized && d_.neurons_when_asked(l)
            ? credit_at_start(l, side, own, weight)
            : ops_.neuron_credit(own, d_.length(), linearized ? &pre : nullptr,
                                 linearized ? nullptr : &d_.mlp(l, side, o_.scores, context_),
                                 o_.beta, weight);
    passed_ += passed.passed;
    doubt_ += passed.doubt;
    Values read;
    ops_.neuron_reads(d_.mlp_view(l), side, o_.scores, passed.coef, read);
    if (linearized) {  // one denominator a position
      Values scores;
      d_.position_dots(0, visible, read, scores);
      for (std::size_t q = 0; q < length_; ++q) {
        double sum = 0, abs = 0;
        for (std::size_t j = 0; j < static_cast<std::size_t>(visible); ++j) {
          const double r = scores[q * visible + j];
          sum += r;
          abs += std::fabs(r);
        }
        const double by =
            base::coefficient(weight, passed.credit[q], base::inverse_denom(sum, abs, o_.beta));
        for (std::size_t i = 0; i < width_; ++i) read[q * width_ + i] *= by;
      }
    }
    add_to(read, out);
    if (keep_ != Keep::nothing) layers_[l].mlp[index] = std::move(read);
  }
}

// The direction in which every head passes its credit on, in its own space, [S, H, E].
ReadSweep::Values ReadSweep::head_directions(int l, const Values& linear, const Values& keyed) {
  const backend::AttentionView view = d_.attention_view(l);
  const int first = d_.writers().head(l, 0);
  const std::size_t heads = c_.n_heads, e = c_.d_head;
  Values both = linear, pulled;
  both.insert(both.end(), keyed.begin(), keyed.end());
  std::vector<int> queries = all_queries(length_);
  queries.insert(queries.end(), queries.begin(), queries.begin() + d_.length());
  ops_.head_directions(view, queries, both, pulled);
  const Values part = key_parts(keyed, first, first + c_.n_heads);
  const std::size_t size = length_ * heads * e;
  Values out(pulled.begin(), pulled.begin() + size);
  for (std::size_t i = 0; i < size; ++i) out[i] += part[i / e] * pulled[size + i];
  Values at_start;
  for (std::size_t h = 0; h < heads; ++h) {
    const int writer = first + h;
    if (!starts_at(writer)) continue;
    if (at_start.empty())
      ops_.head_directions(view, std::vector<int>{start_.position}, start_.direction, at_start);
    double by = 1.0;
    if (start_.root) {
      backend::Backend& backend = d_.backend();
      backend::Array direction = backend.zeros(c_.d_model);
      backend.upload(direction, 0, start_.direction);
      const std::size_t sources = start_.position + 1;
      backend::Array products = backend.zeros(heads * sources);
      backend.head_numerators(view, std::vector<int>{start_.position}, direction, products);
      Values own(sources);
      backend.download(products, h * sources, own);
      by = start_scale(writer, own);
    }
    double* row = out.data() + (start_.position * heads + h) * e;
    for (std::size_t i = 0; i < e; ++i) row[i] += by * at_start[h * e + i];
  }
  return out;
}

void ReadSweep::attention(int l, const Values& linear, Values& keyed, Values& out) {
  const backend::AttentionView view = d_.attention_view(l);
  const backend::AttentionSums& sums = d_.attention(l, o_.scores, context_);
  Layer layer;
  layer.heads = ops_.head_reads(view, sums, o_, head_directions(l, linear, keyed));
  layer.offsets.scores = sums.k_scores;
  if (o_.scores == Scores::centered) layer.offsets.raw = sums.k_mean;
  if (o_.keys == Keys::spread) {
    backend::Backend& backend = d_.backend();
    layer.offsets.kept = d_.key_medians(l, context_);
    layer.offsets.raw = backend.zeros(sums.k_mean.size());
    for (const backend::Array& part : {sums.k_mean, layer.offsets.kept})
      backend.add(part, layer.offsets.raw, part.size());
  }
  add_to(layer.heads.linear, out);
  add_to(layer.heads.keyed, keyed);
  // Credit by keys is a share of centred scores and no product with the writer alone.
  Values products, taken;
  d_.position_dots(0, view.visible, layer.heads.keyed, products);
  if (!layer.offsets.raw.empty()) ops_.offset_fold(view, layer.heads, layer.offsets.raw, taken);
  const std::size_t cl = view.visible;
  for (std::size_t i = 0; i < products.size(); ++i)
    keyed_[i / cl * writers_ + i % cl] += products[i] - (taken.empty() ? 0.0 : taken[i]);
  if (keep_ == Keep::nothing) return;
  layer.heads.linear = layer.heads.keyed = {};
  layer.heads.values = d_.writer_values(l, context_);
  layer.heads.keys = d_.writer_keys(l, context_);
  ops_.keep_for_edges(view, layer.heads);
  Layer& kept = layers_[l];
  kept.heads = std::move(layer.heads);
  kept.offsets = std::move(layer.offsets);
}

}  // namespace unpack::engine

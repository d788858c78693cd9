#include "unpack/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <random>

#include "backend/device_memory.h"
#include "backend/device_plan.h"
#include "base/system.h"
#include "bench/text.h"
#include "engine/plan.h"
#include "engine/state.h"
#include "engine/sums.h"
#include "forward/forward.h"
#include "model/load.h"
#include "unpack/batch.h"
#include "unpack/prepared.h"

namespace unpack {

namespace {

double mib(std::uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }
double peak_memory_mib() { return mib(base::process_memory().peak); }

// Of a device, which chooses by length what it does.
engine::Cost planned_cost(engine::Cost forward, const BenchResult::Length& length) {
  for (const auto& part : length.plan) {
    forward.flop += part.gflop * 1e9;
    forward.byte += part.gbyte * 1e9;
  }
  return forward;
}

class Bench {
 public:
  Bench(const BenchOptions& options, const RunContext& context, Model model)
      : options_(options),
        context_(context),
        model_(std::move(model)),
        memory_(engine::state_of(model_)->backend->device_memory()) {
    if (memory_ == nullptr && (options_.keep_layers != 0 || options_.memory_only)) {
      throw UsageError(fmt::format("{} is about a GPU's memory: use it with device cuda",
                                   options_.memory_only ? "memory" : "keep_layers"));
    }
    if (options_.keep_layers == 0) return;
    const int layers = model_.config().n_layers;
    if (options_.keep_layers < 2 || options_.keep_layers >= layers) {
      throw UsageError(
          fmt::format("keep_layers must be at least 2 and less than the model's {} layers, not {}",
                      layers, options_.keep_layers));
    }
  }

  BenchResult run() {
    backend::Backend& backend = *engine::state_of(model_)->backend;
    result_.program = model_.program();
    result_.model = model_.info();
    result_.kernels = backend.details();
    const backend::Backend::Peaks peaks =
        options_.memory_only ? backend::Backend::Peaks{} : backend.measure_peaks();
    rate_ = peaks.flops;
    bandwidth_ = peaks.bytes;
    result_.gemm_gflops = rate_ / 1e9;
    result_.read_gbytes = bandwidth_ / 1e9;
    result_.weights_mib =
        static_cast<double>(engine::state_of(model_)->weights->parameter_count()) * 4 / (1 << 20);
    const std::vector<TokenId> one = {0};
    const forward::ForwardPass packs = forward::forward(backend, {one}, {});
    if (memory_ != nullptr) {
      std::vector<double> logits;  // the table of output embeddings
      backend.logits(packs.x_final, std::vector<std::int64_t>{0}, logits);
      (void)memory_->memory_use(true);
      result_.device_weights_mib = static_cast<double>(memory_->memory_use().peak) / (1 << 20);
    }
    result_.peak_memory_mib = peak_memory_mib();
    base::forget_peak_memory();  // what a length starts from
    result_.base_memory_mib = mib(base::process_memory().now);
    emit(bench::header_text(result_));
    for (const int tokens : options_.tokens) {
      result_.peak_memory_mib = std::max(result_.peak_memory_mib, peak_memory_mib());
      result_.lengths.emplace_back().tokens = tokens;
      emit(bench::length_text(result_.lengths.back()));
      const bool by_layer = engine::goes_by_layer(*engine::state_of(model_), tokens, context_);
      for (const backend::DevicePlan::Part& part : backend.plan(model_.writers(), tokens, by_layer))
        result_.lengths.back().plan.push_back(
            {part.what, part.way, part.flop / 1e9, part.byte / 1e9});
      emit(bench::plan_text(result_.lengths.back()));
      length(tokens, by_layer);
      emit(bench::after_rows_text(result_, result_.lengths.back()));
    }
    result_.peak_memory_mib = std::max(result_.peak_memory_mib, peak_memory_mib());
    if (memory_ != nullptr)
      result_.device_held_mib = static_cast<double>(memory_->memory_use().held) / (1 << 20);
    emit(bench::tail_text(result_));
    return result_;
  }

 private:
  void emit(const std::string& text) const {
    if (options_.print) options_.print(text);
  }

  std::vector<TokenId> prompt(int tokens, std::uint64_t seed) const {
    std::mt19937_64 generator(seed);
    std::vector<TokenId> ids;
    ids.reserve(tokens);
    for (int i = 0; i < tokens; ++i) ids.push_back(generator() % model_.config().vocab_size);
    return ids;
  }

  // Waits for a device that works on by itself; false where there is none.
  bool finish_queued() const { return engine::state_of(model_)->backend->synchronize(); }

  template <typename Work>
  double median(int repeat, const Work& work) const {
    std::vector<double> times;
    for (int i = 0; i < repeat; ++i) {
      context_.check();
      finish_queued();
      const auto begin = std::chrono::steady_clock::now();
      work();
      finish_queued();
      times.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  Prepared prepare(const std::vector<TokenId>& ids, const Options& options) {
    Prepared made = model_.prepare(ids, context_);
    engine::make_sums(*engine::state_of(made), options, context_);
    return made;
  }

  void row(std::string name, double seconds, const engine::Cost& cost, std::string note) {
    BenchRow r;
    r.name = std::move(name);
    r.seconds = seconds;
    r.gflop = cost.flop / 1e9;
    r.gbyte = cost.byte / 1e9;
    r.bound = cost.flop / rate_ + cost.byte / bandwidth_;
    r.note = std::move(note);
    if (r.name == "forward pass") r.bound = std::max(cost.flop / rate_, cost.byte / bandwidth_);
    std::vector<BenchRow>& rows = result_.lengths.back().rows;
    rows.push_back(std::move(r));
    emit(bench::row_text(rows.back(), rows.size() == 1));
  }

  void length(int tokens, bool by_layer) {
    context_.report("bench", 0, 0);
    backend::Backend& backend = *engine::state_of(model_)->backend;
    const ModelConfig& c = model_.config();
    const std::vector<TokenId> ids = prompt(tokens, 1);
    base::forget_peak_memory();
    const int repeat = std::max(1, options_.repeat);
    Question question;
    question.options = preset_options(options_.preset);
    question.paths.top = options_.top_paths;
    if (options_.memory_only) {
      (void)memory_->memory_use(true);
      (void)model_.prepare(ids, context_).trace(question, context_);
      take_peak(by_layer);
      return;
    }

    forward::ForwardOptions plain;
    plain.keep = false;
    std::vector<double> logits;
    const auto forward_once = [&] {
      const forward::ForwardPass pass = forward::forward(backend, {ids}, plain);
      const std::vector<std::int64_t> last = {tokens - 1};
      backend.logits(pass.x_final, last, logits);
    };
    forward_once();
    const double forward_seconds = median(std::max(5, repeat), forward_once);
    const engine::Cost forward_plan = engine::forward_cost(c, tokens);
    row("forward pass", forward_seconds, forward_plan, "logits at the last position");

    engine::Cost prepare_plan =
        memory_ != nullptr
            ? planned_cost(forward_plan, result_.lengths.back())
            : engine::prepare_cost(c, model_.writers(), tokens, engine::products_of(backend));
    engine::Cost all = prepare_plan;
    const engine::Cost questions = engine::question_cost(c, model_.writers(), tokens);
    all += questions;
    // Of a long prompt edges are made along with the sums.
    if (memory_ == nullptr && question.options.direction == Direction::output &&
        (!decompose::Decomposition::wants_key_scores(backend, question.options.scores, tokens) ||
         !decompose::Decomposition::table_fits(c, model_.writers(), tokens, context_.memory_budget,
                                               4))) {
      const engine::Cost later = engine::target_cost(c, model_.writers(), tokens);
      prepare_plan += {questions.flop - later.flop, questions.byte - later.byte};
    }
    if (memory_ != nullptr) (void)memory_->memory_use(true);
    // A long prompt takes minutes on a CPU: one run of everything, on what the first left behind. A
    // device does the same where its first trace took long.
    constexpr double kLong = 5;
    bool once = tokens > 256 && memory_ == nullptr;
    std::vector<double> prepare_times;
    std::optional<Prepared> kept;
    const auto one_run = [&](bool waits, bool keeps) {
      const auto begin = std::chrono::steady_clock::now();
      Prepared made = prepare(ids, question.options);
      if (waits) finish_queued();
      prepare_times.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
      (void)made.trace(question, context_);
      if (keeps) kept = std::move(made);
    };
    double one_shot = 0;
    if (!once) {
      // Warms packed weights and the vocabulary mean.
      one_shot = median(1, [&] { one_run(true, true); });
      once = memory_ != nullptr && one_shot > kLong;
      if (!once) {
        kept.reset();
        prepare_times.clear();
      }
    }
    if (!kept) one_shot = median(once ? 1 : repeat, [&] { one_run(false, once); });
    take_peak(by_layer);
    std::sort(prepare_times.begin(), prepare_times.end());
    double prepare_seconds = prepare_times[prepare_times.size() / 2];
    // A device still works on the prompt when prepare returns, and waiting there would make the
    // trace above look slower than it is.
    if (!once && finish_queued())
      prepare_seconds = median(repeat, [&] { (void)prepare(ids, question.options); });
    row("one-shot trace", one_shot, all,
        fmt::format("prepare, token credit and the {} strongest paths", options_.top_paths));
    row("  prepare", prepare_seconds, by_layer ? forward_plan : prepare_plan,
        by_layer ? "the forward pass: everything else is made layer by layer" : "");
    if (by_layer) return;  // every further question takes about as long as the first

    const Prepared prepared = kept ? *kept : model_.prepare(ids);
    if (!kept) (void)prepared.trace(question);
    int turn = 0;
    const auto small = [&](const char* name, const std::function<Question()>& make, int times,
                           const engine::Cost& plan = {}) {
      const double seconds = median(times, [&] { (void)prepared.trace(make(), context_); });
      row(name, seconds, plan, fmt::format("{:.2f}% of prepare", 100 * seconds / prepare_seconds));
    };
    const Writers& writers = model_.writers();
    const int few = once ? 1 : 5;
    small(
        "  rerooting",
        [&] {
          Question q = question;
          const int layer = c.n_layers - 1 - turn % std::max(1, c.n_layers / 2);
          q.root = fmt::format("{}@{}", writers.name(writers.head(layer, turn % c.n_heads)),
                               tokens - 1 - turn % tokens);
          turn++;
          return q;
        },
        once ? 3 : 100);
    small(
        "  another target",
        [&] {
          Question q = question;
          q.target.ids = {static_cast<TokenId>(++turn % c.vocab_size)};
          return q;
        },
        few, engine::target_cost(c, writers, tokens));
    small(
        "  another beta",
        [&] {
          Question q = question;
          q.options.beta = 0.1 + 0.01 * ++turn;
          return q;
        },
        few, engine::beta_cost(c, writers, tokens));
    small(
        "  1,000 paths",
        [&] {
          Question q = question;
          q.paths.top = 1000;
          return q;
        },
        once ? 1 : 3);
    BenchResult::Length& now = result_.lengths.back();
    now.peak_memory_mib = peak_memory_mib();
    now.memory_bound_mib =
        result_.base_memory_mib +
        engine::memory_cost(
            c, model_.writers(), tokens, context_.memory_budget, backend.threads(),
            decompose::Decomposition::wants_key_scores(backend, question.options.scores, tokens)) /
            (1 << 20);
    if (options_.keep_layers > 0) streamed(ids, question, one_shot);
    if (memory_ != nullptr && !once && options_.prompts > 0 && tokens <= 64 && !batched_) {
      batched_ = true;
      batch_on_device(tokens, question);
    }
    if (!once && weight_product_obstacle(c).empty() &&
        weight_product_bytes(c) <= options_.load.product_limit && !options_.load.weight_products &&
        backend.name() == "cpu")
      products(tokens, question, one_shot);
  }

  void take_peak(bool by_layer) {
    if (memory_ == nullptr) return;
    BenchResult::Length& now = result_.lengths.back();
    now.device_peak_mib = static_cast<double>(memory_->memory_use().peak) / (1 << 20);
    const bool raw = preset_options(options_.preset).scores == Scores::raw;
    const double bytes =
        by_layer ? engine::by_layer_memory_cost(model_.config(), model_.writers(), now.tokens,
                                                memory_->in_parts(), raw)
                 : engine::device_memory_cost(model_.config(), model_.writers(), now.tokens,
                                              context_.memory_budget, memory_->in_parts(), raw);
    now.device_counted_mib = bytes / (1 << 20);
  }

  // The same trace where only some layers fit.
  void streamed(const std::vector<TokenId>& ids, const Question& question, double resident) {
    const int repeat = std::max(1, options_.repeat);
    BenchStreamed s;
    s.layers_kept = options_.keep_layers;
    s.resident_seconds = resident;
    memory_->keep_layers(options_.keep_layers);
    double rate = 0;  // bytes a second with nothing else to do
    const double alone = median(3, [&] { rate = memory_->upload_once(); });
    rate /= alone;
    const auto once = [&] { (void)model_.prepare(ids, context_).trace(question, context_); };
    once();
    const std::uint64_t before = memory_->uploaded_bytes();
    s.seconds = median(repeat, once);
    const double bytes = static_cast<double>(memory_->uploaded_bytes() - before) / repeat;
    s.uploaded_gbytes = bytes / 1e9;
    s.upload_seconds = bytes / rate;
    memory_->keep_layers(model_.config().n_layers);
    result_.lengths.back().streamed = s;
  }

  std::vector<std::vector<TokenId>> some_prompts(int tokens) const {
    std::vector<std::vector<TokenId>> out;
    for (int i = 0; i < options_.prompts; ++i) out.push_back(prompt(tokens, 2 + i));
    return out;
  }

  // Prompts that a device traces side by side.
  void batch_on_device(int tokens, const Question& question) {
    const auto prompts = some_prompts(tokens);
    const auto all = [&] {
      return engine::side_by_side(
          model_, prompts.size(), tokens, context_, [&](const Model& model, std::size_t i) {
            (void)model.prepare(prompts[i], context_).trace(question, context_);
          });
    };
    if (!all()) return;  // makes what they share
    const double batched = median(1, all);
    const double single = median(1, [&] {
      for (const auto& p : prompts) (void)model_.prepare(p).trace(question);
    });
    row(fmt::format("{} prompts in a batch", options_.prompts), batched, {},
        fmt::format("{:.2f} times the throughput of single calls", single / batched));
  }

  // The same model with weight products, and a batch that shares them.
  void products(int tokens, const Question& question, double one_shot) {
    const ModelConfig& c = model_.config();
    LoadOptions load = options_.load;
    load.weight_products = true;
    const int repeat = std::max(1, options_.repeat);
    {
      const Model fast = model_.with(load);
      const double first =
          median(1, [&] { (void)fast.prepare(prompt(tokens, 1)).trace(question); });
      engine::Cost plan =
          engine::prepare_cost(c, model_.writers(), tokens, backend::Products::kept);
      plan += engine::question_cost(c, model_.writers(), tokens);
      const double seconds = median(repeat, [&] {
        (void)fast.prepare(prompt(tokens, 1), context_).trace(question, context_);
      });
      row("with weight products", seconds, plan,
          fmt::format("{:.2f} times faster than one-shot; {} MiB, {:.2f} s to make",
                      one_shot / seconds, weight_product_bytes(c) >> 20, first - seconds));
    }
    if (options_.prompts <= 0 || tokens > 64 || batched_) return;
    batched_ = true;
    const auto prompts = some_prompts(tokens);
    const Model fast = model_.with(load);
    // As a batch does it, some at once; and in turn with single calls, so that what else the
    // machine does falls on both.
    const std::size_t at_once = prompts_at_once(tokens);
    double batched = 0, single = 0;
    for (std::size_t begin = 0; begin < prompts.size(); begin += at_once) {
      const std::size_t count = std::min(at_once, prompts.size() - begin);
      batched += median(1, [&] {
        engine::state_of(fast)->backend->together(
            count, [&](std::int64_t i) { (void)fast.prepare(prompts[begin + i]).trace(question); });
      });
      single += median(1, [&] {
        for (std::size_t i = begin; i < begin + count; ++i)
          (void)model_.prepare(prompts[i]).trace(question);
      });
    }
    row(fmt::format("{} prompts in a batch", options_.prompts), batched, {},
        fmt::format(
            "{:.2f} times the throughput of single calls, the making of the products included",
            single / batched));
  }

  const BenchOptions& options_;
  const RunContext& context_;
  Model model_;
  backend::DeviceMemory* memory_;  // null: the device is the host
  BenchResult result_;
  double rate_ = 0;
  double bandwidth_ = 0;
  bool batched_ = false;  // one length is enough
};

}  // namespace

BenchResult run_bench(const BenchOptions& options, const RunContext& context) {
  for (const int tokens : options.tokens) {
    if (tokens < 1) throw UsageError(fmt::format("tokens must be at least 1, not {}", tokens));
  }
  if (options.repeat < 1) throw UsageError("repeat must be at least 1");
  if (options.prompts < 0)
    throw UsageError(fmt::format("prompts must be 0 or more, not {}", options.prompts));
  DType dtype = DType::f32;
  if (options.dtype == "bf16") {
    dtype = DType::bf16;
  } else if (options.dtype == "f16") {
    dtype = DType::f16;
  } else if (options.dtype != "f32") {
    throw UsageError("dtype must be f32, f16 or bf16");
  }
  const std::vector<std::string> known = known_shapes();
  const bool random = options.shape.starts_with('{') ||
                      std::find(known.begin(), known.end(), options.shape) != known.end();
  Model model = random ? Model::random(options.shape, 1, options.load, dtype)
                       : Model::load(options.shape, options.load);
  for (const int tokens : options.tokens) {
    if (tokens > model.config().n_ctx)
      throw InputError(
          fmt::format("tokens {} is past the model's context of {}", tokens, model.config().n_ctx));
  }
  return Bench(options, context, std::move(model)).run();
}

std::vector<std::string> known_shapes() { return model::known_shapes(); }

}  // namespace unpack

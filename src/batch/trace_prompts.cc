#include <algorithm>
#include <mutex>
#include <new>
#include <span>

#include "batch/facts.h"
#include "batch/request.h"
#include "engine/state.h"
#include "report/json.h"
#include "report/line_log.h"
#include "unpack/error.h"
#include "unpack/prepared.h"

namespace unpack {

namespace {

using Json = OrderedJson;

Json head(const PromptRecord& record, const Json& id) {
  return {{"index", record.index}, {"line", record.line}, {"id", id}};
}

struct Job {
  std::size_t at = 0;  // among the records
  batch::BatchRequest request;
};

class Tracing {
 public:
  Tracing(const Model& model, const std::vector<PromptRecord>& records, const RunContext& context)
      : model_(model), records_(records), context_(context) {
    lines_.resize(records.size());
    inner_ = context;
    inner_.progress = {};  // prompts are counted here, not the layers of each
  }

  void fail(std::size_t at, const std::string& reason, const Json& id = {}) {
    BatchLine& line = lines_[at];
    line.index = records_[at].index;
    line.error = true;
    line.reason = reason;
    Json object = head(records_[at], id);
    object["reason"] = reason;
    line.text = report::seal(std::move(object));
  }

  std::vector<Job> read(const Asked& defaults) {
    std::vector<Job> jobs;
    for (std::size_t at = 0; at < records_.size(); ++at) {
      context_.check();
      if (!records_[at].problem.empty()) {
        fail(at, records_[at].problem);
        continue;
      }
      try {
        jobs.push_back({at, batch::read_request(model_, defaults, records_[at].fields)});
        lines_[at].unknown = jobs.back().request.unknown;
      } catch (const InputError& error) {
        fail(at, error.what(), batch::id_of(records_[at].fields));
      } catch (const UsageError& error) {
        fail(at, error.what(), batch::id_of(records_[at].fields));
      }
    }
    done_ = records_.size() - jobs.size();
    return jobs;
  }

  // Prompts at once, each on a thread of its own, which share what they read of the weights.
  void trace(std::span<const Job> jobs) {
    try {
      engine::state_of(model_)->backend->together(std::ssize(jobs),
                                                  [&](std::int64_t i) { trace(model_, jobs[i]); });
    } catch (const std::bad_alloc&) {
      if (jobs.size() == 1) throw;
    }
    for (const Job& job : jobs) {
      if (jobs.size() > 1) again_alone(job);
      report();
    }
  }

  // Memory that was too little for several prompts may do for one, whose line depends on no other.
  void again_alone(const Job& job) {
    BatchLine& line = lines_[job.at];
    if (!line.text.empty() && !line.error) return;
    std::vector<std::string> unknown = std::move(line.unknown);
    line = {};
    line.unknown = std::move(unknown);
    trace(model_, job);
  }

  void report() {
    std::lock_guard one_at_a_time(report_);
    context_.report("prompts", ++done_, records_.size());
  }

  // From several threads, each with other jobs.
  void trace(const Model& model, const Job& job) {
    try {
      BatchLine& line = lines_[job.at];
      Json object = head(records_[job.at], job.request.id);
      object.update(job.request.answer ? answer(model, job, line) : plain_trace(model, job, line));
      line.index = records_[job.at].index;
      line.text = report::seal(std::move(object));
    } catch (const InputError& error) {
      fail(job.at, error.what(), job.request.id);
    } catch (const UsageError& error) {
      fail(job.at, error.what(), job.request.id);
    }
  }

  Json answer(const Model& model, const Job& job, BatchLine& line) const {
    const AnswerResult result = explain_answer(model, job.request.prompt, *job.request.answer,
                                               job.request.asked.question.options, inner_);
    line.facts = batch::facts_of(result);
    return report::answer_json(result);
  }

  Json plain_trace(const Model& model, const Job& job, BatchLine& line) const {
    const Asked& asked = job.request.asked;
    const Prepared prepared = model.prepare(job.request.prompt.ids, inner_);
    const TraceResult result =
        asked.method == Method::unpack
            ? prepared.trace(asked.question, inner_)
            : baseline(prepared, asked.question.target, asked.method, inner_);
    line.facts = batch::facts_of(result);
    Json object = report::trace_json(result);
    if (!job.request.spans.empty())
      object["groups"] =
          report::groups_json(span_credits(job.request.spans, result.tokens, result.token_credit));
    return object;
  }

  std::vector<BatchLine> take() { return std::move(lines_); }

 private:
  const Model& model_;
  const std::vector<PromptRecord>& records_;
  const RunContext& context_;
  RunContext inner_;
  std::vector<BatchLine> lines_;
  std::size_t done_ = 0;
  std::mutex report_;
};

}  // namespace

std::vector<BatchLine> trace_prompts(const Model& model, const Asked& defaults,
                                     const std::vector<PromptRecord>& records,
                                     const RunContext& context) {
  Tracing tracing(model, records, context);
  std::vector<Job> jobs = tracing.read(defaults);
  // A damaged model is no fault of the prompts, whose lines would stay when it has been mended.
  if (!jobs.empty()) engine::state_of(model)->backend->check_values();
  std::stable_sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) {
    return a.request.prompt.ids.size() < b.request.prompt.ids.size();
  });
  const int longest = jobs.empty() ? 0 : jobs.back().request.prompt.ids.size();
  if (engine::side_by_side(model, jobs.size(), longest, context,
                           [&](const Model& one, std::size_t i) {
                             tracing.trace(one, jobs[i]);
                             tracing.report();
                           }))
    return tracing.take();
  const std::span<const Job> all(jobs);
  for (std::size_t begin = 0; begin < jobs.size();) {
    // Sorted by length: the last of some is the longest.
    std::size_t count = 1;
    while (begin + count < jobs.size() &&
           count < prompts_at_once(jobs[begin + count].request.prompt.ids.size()))
      ++count;
    tracing.trace(all.subspan(begin, count));
    begin += count;
  }
  return tracing.take();
}

std::size_t prompts_at_once(std::size_t tokens) {
  constexpr std::size_t kMost = 8, kTokens = 128;
  return std::clamp<std::size_t>(kTokens / std::max<std::size_t>(tokens, 1), 1, kMost);
}

BatchMaker batch_maker(const Model& model) {
  BatchMaker maker{model.info(),
                   model.program().version,
                   model.program().device,
                   engine::state_of(model)->options.weight_products,
                   {}};
  for (int w = 0; w < model.writers().count(); ++w)
    maker.writers.push_back(model.writers().name(w));
  return maker;
}

bool products_pay(const Model& model, std::size_t prompts) {
  constexpr std::size_t kWorthwhile = 16;
  return model.program().device == "cpu" && prompts >= kWorthwhile &&
         weight_product_obstacle(model.config()).empty() &&
         weight_product_bytes(model.config()) <= engine::state_of(model)->options.product_limit;
}

Model for_batch(const Model& model, std::size_t prompts) {
  LoadOptions load = engine::state_of(model)->options;
  if (load.weight_products || !products_pay(model, prompts)) return model;
  load.weight_products = true;
  return model.with(load);
}

}  // namespace unpack

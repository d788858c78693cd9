// The prompts of a task: from a file, or from the generators of the experiments.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/files.h"
#include "batch/prompt_source.h"
#include "experiments/text_data.h"
#include "unpack/circuit.h"
#include "unpack/error.h"
#include "unpack/fields.h"
#include "unpack/question.h"

namespace unpack {

namespace {

constexpr std::size_t kLongestPrompt = 1'000'000;  // token ids

Task ioi_task(const Model& model, int n, std::uint64_t seed) {
  Task task{"ioi", {}};
  std::uint64_t other = seed;
  for (const experiments::IoiPrompt& p : experiments::ioi_prompts(model, n, seed, false)) {
    task.prompts.push_back({p.ids,
                            experiments::ioi_corrupted(model, p, ++other),
                            {model.single_token(" " + p.io)},
                            std::vector<TokenId>{model.single_token(" " + p.s)}});
  }
  return task;
}

Task greater_than_task(const Model& model, int n, std::uint64_t seed) {
  Task task{"greater-than", {}};
  for (const experiments::YearPrompt& p : experiments::year_prompts(model, n, seed))
    task.prompts.push_back({p.ids, p.corrupted, p.above, p.up_to});
  return task;
}

// A row of words, and its beginning once more: the next word is the one that followed before. In
// the counterfactual that word has changed places with another one of the row.
Task induction_task(const Model& model, int n, std::uint64_t seed) {
  constexpr std::size_t kRow = 8;
  std::vector<std::string> words;
  for (const char* list : {"names.txt", "places.txt", "objects.txt"}) {
    const std::vector<std::string> more = experiments::single_token_words(model, list);
    words.insert(words.end(), more.begin(), more.end());
  }
  if (words.size() < kRow)
    throw InputError(fmt::format("of the word lists, {} words are one token of {}: too few",
                                 words.size(), model.config().name));
  const std::vector<TokenId> front = model.encode_prompt("");
  std::mt19937_64 generator(seed);
  Task task{"induction", {}};
  for (int i = 0; i < n; ++i) {
    std::vector<std::string> row = words;
    experiments::shuffle(row, generator);
    std::vector<TokenId> ids;
    for (std::size_t w = 0; w < kRow; ++w) ids.push_back(model.single_token(" " + row[w]));
    const std::size_t last = 2 + generator() % 3;  // the word before the answer
    const std::size_t other = last + 2 + generator() % (kRow - last - 2);
    const auto prompt = [&](const std::vector<TokenId>& first) {
      std::vector<TokenId> out = front;
      out.insert(out.end(), first.begin(), first.end());
      out.insert(out.end(), ids.begin(), ids.begin() + last + 1);
      return out;
    };
    std::vector<TokenId> swapped = ids;
    std::swap(swapped[last + 1], swapped[other]);
    task.prompts.push_back(
        {prompt(ids), prompt(swapped), {ids[last + 1]}, std::vector<TokenId>{ids[other]}});
  }
  return task;
}

std::vector<TokenId> read_prompt(const Model& model, const Fields& fields, const char* text,
                                 const char* ids) {
  const Field *as_text = find_field(fields, text), *as_ids = find_field(fields, ids);
  if (as_text != nullptr && as_ids != nullptr)
    throw InputError(fmt::format("{} and {} do not go together", text, ids));
  if (as_ids != nullptr) return read_ids(ids, *as_ids, model.config().vocab_size, kLongestPrompt);
  return as_text != nullptr ? model.encode_prompt(read_text(text, *as_text))
                            : std::vector<TokenId>();
}

TaskPrompt read_prompt_fields(const Model& model, const Fields& fields) {
  TaskPrompt out;
  out.ids = read_prompt(model, fields, "prompt", "ids");
  if (out.ids.empty()) throw InputError("neither prompt nor ids are given");
  model.check(out.ids);
  out.counterfactual = read_prompt(model, fields, "counterfactual", "counterfactual_ids");
  if (!out.counterfactual.empty() && out.counterfactual.size() != out.ids.size()) {
    throw InputError(
        fmt::format("the counterfactual has {} tokens, the prompt {}: they must be of one length",
                    out.counterfactual.size(), out.ids.size()));
  }
  Fields answer;
  for (const auto& field : fields) {
    for (const char* name : {"target", "target_id", "versus", "versus_id"}) {
      if (field.first == name) answer.push_back(field);
    }
  }
  Asked asked;
  apply_fields(answer, asked, &model);
  out.target = asked.question.target.ids;
  out.versus = asked.question.target.versus;
  if (out.target.empty()) throw InputError("neither target nor target_id is given");
  return out;
}

// Lines of JSON, or rows of a table by the names of its columns.
class TaskFile {
 public:
  explicit TaskFile(const std::string& file)
      : source_(file), format_(batch::recognise(source_, PromptFormat::automatic)) {
    if (format_ == PromptFormat::text)
      throw InputError(
          fmt::format("{} is neither JSONL nor CSV: a task names prompt, target and versus", file));
    cutter_ = std::make_unique<batch::RecordCutter>(source_.open(),
                                                    format_ == PromptFormat::csv   ? ','
                                                    : format_ == PromptFormat::tsv ? '\t'
                                                                                   : '\0');
    batch::RawRecord record;
    if (format_ == PromptFormat::jsonl || !cutter_->next(record)) return;
    for (const std::string& cell : record.cells) {
      const std::size_t begin = cell.find_first_not_of(" \t"), end = cell.find_last_not_of(" \t");
      header_.push_back(begin == std::string::npos ? "" : cell.substr(begin, end - begin + 1));
    }
  }

  bool next(batch::RawRecord& record) { return cutter_->next(record); }

  Fields fields(const batch::RawRecord& record) const {
    if (!record.problem.empty()) throw InputError(record.problem);
    for (const std::string& cell : record.cells) {
      if (const std::string problem = batch::text_problem(cell); !problem.empty())
        throw InputError(problem);
    }
    if (format_ == PromptFormat::jsonl) {
      Fields fields = read_fields(record.cells[0], "the line");
      std::erase_if(fields, [](const auto& field) { return field.second.missing(); });
      return fields;
    }
    if (record.cells.size() != header_.size())
      throw InputError(fmt::format("{} cells, but the header names {} columns", record.cells.size(),
                                   header_.size()));
    Fields out;
    for (std::size_t i = 0; i < header_.size(); ++i) {
      if (!record.cells[i].empty()) out.emplace_back(header_[i], text_field(record.cells[i]));
    }
    return out;
  }

 private:
  batch::PromptSource source_;
  PromptFormat format_;
  std::unique_ptr<batch::RecordCutter> cutter_;
  std::vector<std::string> header_;
};

}  // namespace

std::vector<std::string> task_names() { return {"ioi", "greater-than", "induction"}; }

Task read_task(const Model& model, const std::string& task, const TaskOptions& options) {
  if (options.n < 1)
    throw UsageError(fmt::format("n takes a number of 1 or more, not {}", options.n));
  if (task == "ioi") return ioi_task(model, options.n, options.seed);
  if (task == "greater-than") return greater_than_task(model, options.n, options.seed);
  if (task == "induction") return induction_task(model, options.n, options.seed);
  if (task != "-" && !base::is_there(task))
    throw InputError(
        fmt::format("'{}' is neither a file nor a task: use ioi, greater-than or induction", task));
  TaskFile file(task);
  Task out{task == "-" ? "stdin" : std::filesystem::path(task).filename().string(), {}};
  batch::RawRecord record;
  while (file.next(record)) {
    if (options.n_given && static_cast<int>(out.prompts.size()) == options.n) break;
    try {
      out.prompts.push_back(read_prompt_fields(model, file.fields(record)));
    } catch (const Error& error) {
      throw InputError(fmt::format("{}, line {}: {}", out.name, record.line, error.what()));
    }
  }
  if (out.prompts.empty()) throw InputError(fmt::format("{} has no prompts", out.name));
  return out;
}

}  // namespace unpack

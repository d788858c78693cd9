// Many prompts from a file: traced in groups, written as they come, resumed after any interruption,
// split over machines and joined again.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "unpack/baselines.h"
#include "unpack/model.h"
#include "unpack/options.h"
#include "unpack/question.h"
#include "unpack/run_context.h"
#include "unpack/shard.h"

namespace unpack {

enum class PromptFormat { automatic, text, jsonl, csv, tsv };
PromptFormat parse_prompt_format(const std::string& name);  // throws UsageError

// One record of a prompt file, not looked into yet.
struct PromptRecord {
  std::size_t index = 0;  // from 0, among the records
  std::size_t line = 0;   // from 1, in the file
  std::string fields;  // a JSON object: prompt or ids, and whatever overrides the run's own options
  std::string problem;  // why there are no fields
};

// Records one after the other, in bounded memory. Throws InputError for what is no file of prompts
// at all.
class PromptReader {
 public:
  // "-": stdin, which is kept in memory.
  explicit PromptReader(const std::string& file, PromptFormat format = PromptFormat::automatic);
  ~PromptReader();
  PromptReader(PromptReader&&) noexcept;
  PromptReader& operator=(PromptReader&&) noexcept;

  bool next(PromptRecord& record);
  void rewind();
  std::size_t count() const;            // records in all
  const std::string& checksum() const;  // of the whole file
  std::string name() const;             // without its folder
  std::vector<std::string> ignored_columns() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What is asked of every prompt that does not say otherwise, from a JSON object of fields
// (InputError, UsageError). Without a model tokens are given as ids.
Asked read_asked(const std::string& fields, const Model* model = nullptr);

// The answer to one record: a line for results.jsonl or errors.jsonl, sealed with a checksum.
struct BatchLine {
  std::size_t index = 0;
  bool error = false;
  std::string text;                    // without a line end
  std::string reason;                  // of an error
  std::vector<double> facts;           // what summary.json is made of
  std::vector<std::string> unknown{};  // fields that nobody reads
};

// Prompts of like length go side by side over the same packed weights and weight products, which
// are read once for all of them. Each has a forward pass of its own: one over several prompts
// rounds otherwise, and what a prompt's line says must not depend on its company. Order is kept.
std::vector<BatchLine> trace_prompts(const Model& model, const Asked& defaults,
                                     const std::vector<PromptRecord>& records,
                                     const RunContext& context = {});

// What made the lines: told apart in run.json.
struct BatchMaker {
  ModelInfo model;
  std::string version, device;
  bool weight_products = false;
  std::vector<std::string> writers;
};
BatchMaker batch_maker(const Model& model);

// How many prompts of so many tokens trace_prompts has at hand at once. Every one of them gives
// what it gives alone, to the last bit.
std::size_t prompts_at_once(std::size_t tokens);

// Whether weight products fit and are earned back by that many prompts. The number is that of the
// whole file, so that all shards decide alike: products change the last bits of a result.
bool products_pay(const Model& model, std::size_t prompts);
Model for_batch(const Model& model, std::size_t prompts);  // with products where they pay

struct BatchOptions {
  std::filesystem::path out;
  Asked question;
  Shard shard;
  bool strict = false;  // a bad line ends the run
  bool arrays = false;  // token and node credit as .npy
};

struct BatchResult {
  std::filesystem::path folder;
  std::size_t results = 0, errors = 0;  // in the folder
  std::size_t done_before = 0;          // of these, what an earlier call had done
  std::vector<std::string> warnings;
};

// A folder of a run: says what is still to be done and takes the answers in order. run_batch and
// the front ends that compute elsewhere stand on this.
class BatchFolder {
 public:
  // Goes on where an interrupted run with the same settings stopped. InputError when the folder
  // holds something else.
  BatchFolder(const BatchOptions& options, const BatchMaker& maker, PromptReader prompts);
  ~BatchFolder();
  BatchFolder(const BatchFolder&) = delete;
  BatchFolder& operator=(const BatchFolder&) = delete;

  std::size_t total() const;  // records of this shard
  std::size_t done() const;
  std::vector<PromptRecord> next(
      std::size_t prompts);                          // up to that many; none: all were handed out
  void append(const std::vector<BatchLine>& lines);  // in the order in which `next` gave them
  BatchResult finish();                              // summary and arrays

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// With `strict`, all lines are looked at before anything is written.
BatchResult run_batch(const Model& model, PromptReader prompts, const BatchOptions& options,
                      const RunContext& context = {});

}  // namespace unpack

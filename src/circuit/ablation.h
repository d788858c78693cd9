// Proof by ablation: passes in which each reader sees its own input, what the circuit keeps as this
// pass makes it and everything else as the counterfactual (the mean, nothing) has it.
#pragma once

#include <memory>
#include <vector>

#include "base/index.h"
#include "circuit/edge_table.h"
#include "forward/forward.h"

namespace unpack::circuit {

// What all writers wrote in one pass over some prompts.
struct WriterRun {
  std::vector<backend::Array> written;  // [C] of [T, D]
  std::vector<backend::Array> streams;  // [L + 1] of [T, D]: before each layer, and the final one
};

// Prompts that go through the layers together.
struct PromptChunk {
  std::vector<std::size_t> members;  // indices in the task
  std::vector<std::vector<TokenId>> prompts;
  std::vector<backend::Segment> segments;
  Index rows = 0;

  void add(std::size_t index, const std::vector<TokenId>& ids);
};
// In order, of at most `rows` rows (one prompt at least), prompts of one rotary together.
std::vector<PromptChunk> cut_chunks(const ModelConfig& config,
                                    const std::vector<TaskPrompt>& prompts, Index rows);
Index chunk_rows(const Model& model);  // that keep all writers of a pass in bounded memory

// A plain pass with all writers.
WriterRun record_writers(const Model& model, const std::vector<std::vector<TokenId>>& prompts,
                         const RunContext& context);
// The same with a say in the embeddings.
WriterRun record_writers(const Model& model, const std::vector<std::vector<TokenId>>& prompts,
                         const std::function<void(backend::Array& emb)>& embeddings,
                         forward::ForwardPass* pass, const RunContext& context);

// Mean logit of the targets less that of the contrast at the last position of every prompt, before
// a final soft cap: what credit and interventions measure, too.
std::vector<double> differences(const Model& model, const std::vector<TaskPrompt>& prompts,
                                const PromptChunk& chunk, const backend::Array& x);

// A pass as others may go on from it at any layer.
struct PassStart {
  std::vector<backend::Array> changes;  // [C] of [T, D]: what is replaced less what was written
  std::vector<backend::Array> streams;  // [L + 1] of [T, D]
};

class CircuitRunner {
 public:
  CircuitRunner(const Model& model, const EdgeTable& table, const std::vector<TaskPrompt>& prompts,
                EdgeAblation ablation, const RunContext& context, CircuitMemory* memory = nullptr);

  // The difference of the logits of every prompt.
  const std::vector<double>& clean() const { return clean_; }
  std::vector<double> measure(const EdgeMask& kept, const RunContext& context);
  // With one edge of `kept` less each time: [edge][prompt]. Only what lies behind an edge is
  // computed again.
  std::vector<std::vector<double>> measure_without(const EdgeMask& kept,
                                                   const std::vector<std::size_t>& edges,
                                                   const RunContext& context);

  double passes() const { return passes_; }  // prompts that went through all or some layers
  // Inputs that readers were given over those of as many plain passes.
  double cost() const { return plain_inputs_ > 0 ? inputs_ / plain_inputs_ : 1; }

 private:
  struct Part {
    PromptChunk chunk;
    std::vector<backend::Array> replaced;  // [C] of [T, D]
  };
  void make_replacements(const std::vector<TaskPrompt>& prompts, EdgeAblation ablation,
                         const RunContext& context);
  void take(std::vector<double> values, int first, std::vector<double>& out);
  int first_layer(std::size_t edge) const;  // that its reader's pass is computed again from
  // measure_without where everything else is kept: many edges at once.
  void patch_each(const Part& part, const std::vector<std::size_t>& edges, const std::string& name,
                  const RunContext& context, std::vector<std::vector<double>>& out);
  std::string name_of(const char* what, const Part& part, const EdgeMask& kept) const;
  // Every prompt's difference, and the inputs that readers were given.
  std::vector<double> run(const Part& part, const EdgeMask& kept, const PassStart* base, int first,
                          PassStart* keep, const RunContext& context);

  const Model& model_;
  const EdgeTable& table_;
  std::vector<TaskPrompt> prompts_;
  std::vector<Part> parts_;
  std::vector<double> clean_;
  EdgeAblation ablation_;
  CircuitMemory* memory_ = nullptr;
  double passes_ = 0, inputs_ = 0, plain_inputs_ = 0;
};

}  // namespace unpack::circuit

// Circuits: few edges that carry a behaviour, found by credit over the prompts of a task and proven
// by ablation of all others.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "unpack/model.h"
#include "unpack/options.h"
#include "unpack/result.h"
#include "unpack/run_context.h"

namespace unpack {

// One prompt of a task. Its answer is read at the last position.
struct TaskPrompt {
  std::vector<TokenId> ids;
  std::vector<TokenId> counterfactual;  // as many tokens; empty: none
  std::vector<TokenId> target;
  std::optional<std::vector<TokenId>> versus;  // nothing: the whole vocabulary
};

struct Task {
  std::string name;  // "ioi", or that of the file without its folder
  std::vector<TaskPrompt> prompts;
};

// The generators: "ioi", "greater-than", "induction".
std::vector<std::string> task_names();
struct TaskOptions {
  int n = 30;  // prompts: how many a generator makes, the most that are taken of a file
  bool n_given = false;
  std::uint64_t seed = 0;
};
// A generator's name or a file: JSONL or CSV with `prompt` or `ids`, `target` or `target_id`,
// `versus` or `versus_id`, and optionally `counterfactual` or `counterfactual_ids`. Throws
// InputError that names the line.
Task read_task(const Model& model, const std::string& task, const TaskOptions& options);

// A writer as one reader sees it on one branch; -1: the target reads, on no branch.
struct CircuitEdge {
  int writer = 0;
  int reader = -1;
  Branch branch = Branch::none;
  int position = -1;  // where the writer wrote, and the reader takes it up; -1: everywhere
  auto operator<=>(const CircuitEdge&) const = default;
};

enum class CircuitMethod { ours, ifr, eap, eap_ig, patching, random };
const char* to_string(CircuitMethod method);  // "ours", "ifr", "eap", "eap-ig", ...
std::vector<CircuitMethod> circuit_methods();
CircuitMethod parse_circuit_method(const std::string& name);  // UsageError

// What an edge outside the circuit carries: the counterfactual's value, the mean over all prompts
// and positions, or nothing.
enum class EdgeAblation { counterfactual, mean, zero };
const char* to_string(EdgeAblation ablation);
inline constexpr std::array kEdgeAblations = {EdgeAblation::counterfactual, EdgeAblation::mean,
                                              EdgeAblation::zero};

// A part of all edges, or a number of them.
struct CircuitSize {
  double share = 0;  // 0 to 1; 0: by count
  int count = 0;
};
// "0.1%", "20"; both in a list with commas. Throws UsageError.
std::vector<CircuitSize> parse_sizes(const std::string& text);
CircuitSize parse_size(const std::string& text);  // one of these
std::vector<CircuitSize> default_sizes();  // MIB's: 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100 %

// What ours starts from here: of all presets the one that finds every compiled circuit.
inline constexpr const char* kCircuitPreset = "best";

struct CircuitOptions {
  CircuitMethod method = CircuitMethod::ours;
  std::string preset = kCircuitPreset;               // what `options` came from; for the report
  Options options = preset_options(kCircuitPreset);  // of ours
  int steps = 5;                                     // of eap-ig
  EdgeAblation ablation = EdgeAblation::counterfactual;
  bool contrast = false;   // ours: credit of what differs from the counterfactual
  bool nodes = false;      // whole components are kept or ablated
  bool positions = false;  // an edge at one position is an edge of its own
  int patched = 0;         // prompts that patching is measured on; 0: all
  std::vector<CircuitSize> sizes = default_sizes();
  std::optional<CircuitSize> size;  // of the final circuit; nothing: the smallest that is faithful
  double faithful = 0.9;            // what that asks
  int minimality = 100;             // edges of the final circuit that are removed one by one
  std::uint64_t seed = 0;           // of random
};

struct RankedEdge {
  CircuitEdge edge;
  double credit = 0;           // the mean over prompts
  double absolute = 0;         // the mean of its size
  int rank = 0;                // from 1, by `absolute`
  bool kept = false;           // in the final circuit
  std::optional<double> drop;  // of faithfulness when it alone is removed from that
};

// One measured size.
struct CircuitPoint {
  double share = 0;  // of all edges (with `nodes`: components), as asked
  int asked = 0;     // the same as a number
  int edges = 0;     // of the connected part
  double value = 0;  // mean difference of the logits
  double faithfulness = 0;
  double necessity = 0;  // 1 - faithfulness of all that is outside
};

struct CircuitMeasure {
  std::vector<CircuitPoint> points;
  double cpr = 0;  // area under faithfulness
  double cmd = 0;  // area between faithfulness and 1
};

struct CircuitCost {
  double ranking = 0;     // forward passes, a backward pass counted as two
  double proof = 0;       // passes in which each reader sees its own input
  double proof_cost = 0;  // what one of them costs in forward passes, by inputs that were read
};

struct CircuitResult {
  ModelInfo model;
  ProgramInfo program;
  ModelConfig layout;
  Task task;                     // of the prompts that took part
  std::size_t wrong = 0;         // prompts left out because the model prefers another answer
  std::size_t other_length = 0;  // and, with positions, because they have another length than most
  CircuitOptions options;
  int all_edges = 0, all_nodes = 0;
  double clean = 0, ablated = 0;  // mean difference of the whole model, and with every edge ablated
  std::vector<RankedEdge> edges;  // those with credit, strongest first
  CircuitMeasure measure;
  CircuitPoint final_point;  // of the circuit that is kept
  CircuitCost cost;
  std::vector<std::string> warnings;

  Writers writer_table() const { return Writers(layout); }
};

// A file that holds what a search has computed so far, made with the first of it: an interrupted
// search goes on from there. One that belongs to another search is begun anew.
namespace report {
class LineLog;
}
class CircuitMemory {
 public:
  // search: all that its numbers depend on.
  CircuitMemory(std::filesystem::path file, const std::string& search);
  ~CircuitMemory();
  CircuitMemory(const CircuitMemory&) = delete;
  CircuitMemory& operator=(const CircuitMemory&) = delete;

  const std::vector<double>* find(const std::string& name) const;
  void keep(const std::string& name, const std::vector<double>& values);
  std::size_t size() const { return known_.size(); }
  void forget();  // removes the file, and its folder where that is left empty

 private:
  std::filesystem::path file_;
  std::string search_;
  std::map<std::string, std::vector<double>> known_;
  std::unique_ptr<report::LineLog> log_;
};

// What a memory is told apart by: model, prompts, and every option that changes a number.
std::string circuit_search(const Model& model, const Task& task, const CircuitOptions& options);

// Throws InputError where no prompt is left, UsageError for values out of range.
CircuitResult find_circuit(const Model& model, const Task& task, const CircuitOptions& options,
                           const RunContext& context = {}, CircuitMemory* memory = nullptr);

// Measures given circuits: the connected part of each list of edges.
struct CircuitProof {
  double clean = 0, ablated = 0;
  std::vector<CircuitPoint> points;
  double cost = 0;
};
CircuitProof prove_circuits(const Model& model, const Task& task,
                            const std::vector<std::vector<CircuitEdge>>& circuits,
                            EdgeAblation ablation, const RunContext& context = {});

// "A0.H0 -[K]-> A1.H0", "MLP0 -> target", with positions "A0.H0@3 -[K]-> A1.H0"; "target" is the
// only reader without a number.
std::string to_string(const Writers& writers, const CircuitEdge& edge);
std::string writer_name(const Writers& writers, const CircuitEdge& edge);  // "A0.H0", "A0.H0@3"
CircuitEdge parse_circuit_edge(const Model& model, const std::string& writer,
                               const std::string& reader, const std::string& branch);
bool has_branch_name(Branch branch);  // false for plain MLPs and the target: null in JSON

// Files
// ----------------------------------------------------------------------------------------------
std::string to_json(const CircuitResult& result);
CircuitResult without_positions(CircuitResult result);  // edges at all positions as one
std::string to_mib(const CircuitResult& result);
// An attribution graph for Neuronpedia's viewer: of the listed paths, node by node; of a circuit,
// whose components have no positions, on the tokens of its first prompt.
std::string to_neuronpedia(const TraceResult& result);
std::string to_neuronpedia(const CircuitResult& result, const Model& model);
std::string to_markdown(const CircuitResult& result, const std::string& command);
std::string to_markdown(const std::vector<CircuitResult>& results, const std::string& command);
std::string to_svg(const CircuitResult& result);
std::string circuit_curves(const std::vector<CircuitResult>& results);  // SVG
std::string to_dot(const CircuitResult& result);
std::string to_graphml(const CircuitResult& result);
// circuit.json, report.md and the pictures; the first result is the circuit, further ones are
// compared with it. Makes the folder.
void write_circuit(const std::filesystem::path& folder, const std::vector<CircuitResult>& results,
                   const std::string& command);

}  // namespace unpack

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <memory>

#include "arguments.h"
#include "commands.h"
#include "unpack/choice.h"
#include "unpack/circuit.h"
#include "unpack/error.h"
#include "unpack/report.h"

namespace unpack::cli {
namespace {

struct CircuitArguments {
  ModelArguments model;
  CircuitOptions options;
  TaskOptions task;
  std::optional<std::string> task_name, out, sizes, size;
  std::optional<int> n;
  bool compare = false;
  Outputs outputs;
};

// What the report says it was made with: everything that changes a number.
std::string command_text(const CircuitArguments& args, const Task& task) {
  const CircuitOptions& o = args.options;
  std::string text = fmt::format("unpack circuit {} --model {}", task.name, args.model.model);
  if (args.n) text += fmt::format(" --n {}", *args.n);
  if (args.task.seed != 0) text += fmt::format(" --seed {}", args.task.seed);
  if (args.compare) text += " --compare";
  if (o.method != CircuitMethod::ours) text += fmt::format(" --method {}", to_string(o.method));
  if (o.preset != kCircuitPreset) text += fmt::format(" --preset {}", o.preset);
  if (o.contrast) text += " --contrast";
  if (o.steps != CircuitOptions().steps) text += fmt::format(" --steps {}", o.steps);
  if (o.ablation != EdgeAblation::counterfactual)
    text += fmt::format(" --ablate {}", to_string(o.ablation));
  if (o.nodes) text += " --nodes";
  if (o.positions) text += " --positions";
  if (o.patched > 0) text += fmt::format(" --patched {}", o.patched);
  if (args.sizes) text += fmt::format(" --sizes {}", *args.sizes);
  if (args.size) text += fmt::format(" --size {}", *args.size);
  return text;
}

std::string method_name(const CircuitOptions& options) {
  return fmt::format("{}{}", to_string(options.method), options.contrast ? ", contrast" : "");
}

// Progress under the method's name.
RunContext named(const RunContext& run, const CircuitOptions& options) {
  RunContext out = run;
  if (run.progress)
    out.progress = [&run, name = method_name(options)](const Progress& at) {
      const std::string what = fmt::format("{}: {}", name, at.what);
      run.progress({what, at.done, at.total});
    };
  return out;
}

// How many prompts exact patching is measured on: one pass an edge and a prompt, which is for small
// models. 0: even one prompt is too much.
int patched_prompts(const CircuitResult& found) {
  constexpr double kPasses = 15'000;
  const double affordable = kPasses / found.all_edges;
  return std::min(affordable, static_cast<double>(found.task.prompts.size()));
}

// What --compare sets beside the asked one: every other method, ours with and without contrast.
std::vector<CircuitOptions> others(const CircuitOptions& asked, const Task& task) {
  bool contrasts = true;
  for (const TaskPrompt& prompt : task.prompts) contrasts &= !prompt.counterfactual.empty();
  std::vector<CircuitOptions> out;
  for (const CircuitMethod method : circuit_methods()) {
    for (const bool contrast : {false, true}) {
      if (contrast && (method != CircuitMethod::ours || !contrasts)) continue;
      if (method == asked.method && contrast == asked.contrast) continue;
      out.push_back(asked);
      out.back().method = method;
      out.back().contrast = contrast;
      out.back().minimality = 0;
    }
  }
  return out;
}

// One circuit a method; the one that was asked for comes first.
std::vector<CircuitResult> find_all(const CircuitArguments& args, const Model& model,
                                    const Task& task, const RunContext& run,
                                    CircuitMemory& memory) {
  std::vector<CircuitResult> out = {
      find_circuit(model, task, args.options, named(run, args.options), &memory)};
  if (!args.compare) return out;
  for (CircuitOptions& other : others(args.options, task)) {
    if (other.method == CircuitMethod::patching && other.patched == 0) {
      other.patched = patched_prompts(out[0]);
      if (other.patched == 0) {
        out[0].warnings.push_back(
            fmt::format("patching was left out: {} edges are too many; --patched N asks for it",
                        out[0].all_edges));
        continue;
      }
    }
    try {
      out.push_back(find_circuit(model, task, other, named(run, other), &memory));
    } catch (const InputError& error) {  // mixtures have no gradients here, tasks no counterfactual
      out[0].warnings.push_back(
          fmt::format("{} was left out: {}", method_name(other), error.what()));
    }
  }
  return out;
}

void write_folder(const CircuitArguments& args, const Model& model, const Task& task,
                  const std::vector<CircuitResult>& results) {
  write_circuit(*args.out, results, command_text(args, task));
  args.outputs.write("--mib", [&] { return to_mib(results[0]); });
  args.outputs.write("--neuronpedia", [&] { return to_neuronpedia(results[0], model); });
}

std::string summary_text(const std::vector<CircuitResult>& results, const std::string& out) {
  const CircuitResult& r = results[0];
  std::string text = fmt::format(
      "{} on {}: {} of {} edges keep {:.0f}% of the difference; without them {:.0f}% is lost\n",
      r.task.name, r.model.name, r.final_point.edges, r.all_edges, 100 * r.final_point.faithfulness,
      100 * r.final_point.necessity);
  for (const CircuitResult& result : results)
    text += fmt::format("{:<14} CPR {:.3f}  CMD {:.3f}  {:g} passes\n", method_name(result.options),
                        result.measure.cpr, result.measure.cmd, result.cost.ranking);
  return text + fmt::format("results are in {}\n", out);
}

void run(CircuitArguments& args, Context& context) {
  if (!args.task_name)
    throw UsageError("no task: name a file (JSONL or CSV), or ioi, greater-than, induction");
  if (!args.out || args.out->empty())
    throw UsageError("out takes the name of a folder for the results: --out FOLDER");
  args.outputs.check();
  CircuitOptions& o = args.options;
  if (args.sizes) o.sizes = parse_sizes(*args.sizes);
  if (args.size) o.size = parse_size(*args.size);
  args.task.n_given = args.n.has_value();
  if (args.n) args.task.n = *args.n;
  o.seed = args.task.seed;
  std::error_code ignored;
  if (std::filesystem::exists(*args.out, ignored) &&
      !std::filesystem::is_directory(*args.out, ignored))
    throw InputError(fmt::format("{} is no folder", *args.out));
  const Model model = args.model.open();
  const Task task = read_task(model, *args.task_name, args.task);
  CircuitMemory memory(std::filesystem::path(*args.out) / "search.jsonl",
                       circuit_search(model, task, args.options));
  std::vector<CircuitResult> results;
  try {
    results = find_all(args, model, task, context.run_logged(), memory);
  } catch (const Cancelled&) {
    throw Interrupted(
        memory.size() > 0
            ? fmt::format("interrupted: what was computed is in {}, and the same command goes on "
                          "from there",
                          *args.out)
            : "interrupted: nothing was written");
  } catch (const Error&) {
    memory.forget();
    throw;
  }
  clear_progress();
  write_folder(args, model, task, results);
  memory.forget();
  for (const std::string& warning : results[0].warnings) warn(warning);
  if (results[0].other_length > 0)
    warn(fmt::format("{} of {} prompts were left out: they have another length than most",
                     results[0].other_length, task.prompts.size()));
  if (results[0].wrong > 0)
    warn(fmt::format("{} of {} prompts were left out: the model prefers another answer",
                     results[0].wrong, task.prompts.size()));
  print(summary_text(results, *args.out));
}

}  // namespace

void add_circuit(App& app, Context& context) {
  const auto args = std::make_shared<CircuitArguments>();
  Command command = app.add(
      "circuit", "Find the edges that carry a behaviour, and prove them by ablating all others",
      "unpack circuit ioi --model pocket-gpt2 --out ioi-circuit");
  command.positional("TASK",
                     "A file (JSONL or CSV: prompt or ids, target, versus, counterfactual), or one "
                     "of ioi, greater-than, induction",
                     [args](const std::string& text) { args->task_name = text; });
  args->model.add(command);
  command.option("--out", "FOLDER", "Where circuit.json, report.md and the pictures go", args->out);
  command.option("--n", "N", "Prompts of a generator (default 30), or at most so many of a file",
                 args->n);
  command.option("--seed", "S", "Seed of generators and of the method random (default 0)",
                 [args](const std::string& text) {
                   std::size_t seed = 0;
                   parse_value("--seed", text, seed);
                   args->task.seed = seed;
                 });
  command.choice("--method", "How edges are ranked (default ours)", args->options.method,
                 words_of(circuit_methods()));
  command.flag("--contrast",
               "ours: credit of what differs between the prompt and its counterfactual",
               args->options.contrast);
  command.option("--steps", "K", "eap-ig: steps from the counterfactual (default 5)",
                 args->options.steps);
  command.choice("--ablate", "What ablated edges carry (default counterfactual)",
                 args->options.ablation, words_of(kEdgeAblations));
  command.flag("--nodes", "Keep or ablate whole components", args->options.nodes);
  command.flag("--positions", "An edge at one position is an edge of its own",
               args->options.positions);
  command.option("--patched", "N",
                 "Prompts that patching is measured on (default all; with --compare what 15,000 "
                 "passes allow)",
                 args->options.patched);
  command.option("--sizes", "SIZE,SIZE,...", "Sizes to measure, as 0.5% or as numbers of edges",
                 args->sizes);
  command.option("--size", "SIZE", "Size of the circuit that is kept", args->size);
  command.option("--faithful", "X", "Keep the smallest size with this faithfulness (default 0.9)",
                 args->options.faithful);
  command.option("--minimality", "N", "Edges of the circuit to remove one by one (default 100)",
                 args->options.minimality);
  command.flag("--compare", "All methods in one report", args->compare);
  args->outputs.add(command, "--mib", "Write the graph in the format of MIB and EAP-IG");
  args->outputs.add(command, "--neuronpedia", "Write an attribution graph for Neuronpedia");
  command.option("--preset", "NAME",
                 fmt::format("ours: {} (default {}); options beside it override it",
                             fmt::join(preset_names(), ", "), kCircuitPreset),
                 [args](const std::string& name) {
                   args->options.options = preset_options(name);
                   args->options.preset = name;
                 });
  add_method(command, args->options.options);
  command.run([args, &context] { run(*args, context); });
}

}  // namespace unpack::cli

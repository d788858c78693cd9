#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "arguments.h"
#include "commands.h"
#include "unpack/choice.h"
#include "unpack/error.h"
#include "unpack/experiments.h"

namespace unpack::cli {
namespace {

struct ExperimentArguments {
  ModelArguments model;
  ExperimentOptions options;
  std::optional<std::string> name, out, corpus, prompts, save, noise;
};

std::vector<std::string> split_names(const std::string& text) {
  std::vector<std::string> out;
  std::size_t begin = 0;
  for (std::size_t comma = text.find(','); comma != std::string::npos;
       comma = text.find(',', begin)) {
    out.push_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  out.push_back(text.substr(begin));
  return out;
}

// The preset that these settings are, else the one that the options beside it change.
const char* preset_beside(const Options& options) {
  for (const char* name : {"released", "best"}) {
    if (options == preset_options(name)) return name;
  }
  return "paper";
}

std::string argument_text(const Field& field) {
  if (const auto* text = std::get_if<std::string>(&field.value)) return *text;
  if (const auto* number = std::get_if<double>(&field.value)) return fmt::format("{}", *number);
  std::vector<std::string> members;
  for (const Field& member : std::get<FieldList>(field.value))
    members.push_back(argument_text(member));
  return fmt::format("{}", fmt::join(members, ","));
}

// What the report says it was made with: everything that changes a number.
std::string command_text(const ExperimentArguments& args) {
  const ExperimentOptions& o = args.options;
  std::string text = fmt::format(
      "unpack experiment {}{} --n {} --seed {}", o.name,
      o.name == "compiled" ? std::string() : fmt::format(" --model {}", args.model.model),
      o.n.value_or(experiment_default_n(o.name)), o.seed);
  if (args.corpus) text += fmt::format(" --corpus {}", o.corpus->filename().string());
  if (args.prompts) text += fmt::format(" --prompts {}", o.prompts->filename().string());
  if (o.roles)
    text += fmt::format(" --roles {}", std::filesystem::path(*o.roles).filename().string());
  if (o.claims)
    text += fmt::format(" --claims {}", std::filesystem::path(*o.claims).filename().string());
  if (o.readout != ExperimentOptions().readout)
    text += fmt::format(" --readout {}", to_string(o.readout));
  if (o.raw_logit) text += " --raw-logit";
  if (o.whole_sentences) text += " --whole-sentences";
  if (o.narrow_paths) text += " --narrow-paths";
  if (o.all) text += " --all";
  if (o.compiled.program) text += fmt::format(" --program {}", *o.compiled.program);
  if (o.compiled.format) text += fmt::format(" --format {}", *o.compiled.format);
  const CompiledOptions usual;
  if (o.compiled.noise != usual.noise)
    text += fmt::format(" --noise {}", fmt::join(o.compiled.noise, ","));
  if (o.compiled.sharpness != usual.sharpness)
    text += fmt::format(" --sharpness {:g}", o.compiled.sharpness);
  const char* preset = preset_beside(o.options);
  text += fmt::format(" --preset {}", preset);
  const Fields usually = to_fields(preset_options(preset));
  for (const auto& [name, field] : to_fields(o.options)) {
    const std::string value = argument_text(field);
    // No experiment asks for a root's other direction.
    if (name != "reroot" && value != argument_text(*find_field(usually, name)))
      text += fmt::format(" {} {}", option_name(name), value);
  }
  return text;
}

void run(ExperimentArguments& args, Context& context) {
  ExperimentOptions& o = args.options;
  if (!args.name)
    throw UsageError(fmt::format("which experiment? {}", fmt::join(experiment_names(), ", ")));
  o.name = *args.name;
  experiment_default_n(o.name);  // an unknown name is known before any work
  o.models = split_names(args.model.model);
  o.load = args.model.options();
  o.out = args.out.value_or(o.name);
  if (args.corpus) o.corpus = *args.corpus;
  if (args.prompts) o.prompts = *args.prompts;
  if (args.save) o.compiled.save = *args.save;
  if (args.noise) {
    o.compiled.noise.clear();
    for (const std::string& part : split_names(*args.noise)) {
      double value = 0;
      parse_value("--noise", part, value);
      o.compiled.noise.push_back(value);
    }
  }
  o.command = command_text(args);
  ExperimentResult result;
  try {
    result = run_experiment(o, context.run_logged());
  } catch (const Cancelled&) {
    throw Interrupted(fmt::format(
        "interrupted: what was measured is in {}, and the same command goes on from there",
        o.out.string()));
  }
  for (const std::string& warning : result.warnings) {
    clear_progress();
    warn(warning);
  }
  print(result.report);
}

}  // namespace

void add_experiment(App& app, Context& context) {
  const auto args = std::make_shared<ExperimentArguments>();
  Command command = app.add(
      "experiment",
      "Measure the method on many prompts: records, summary, report and plots in a folder; a "
      "second call resumes",
      "unpack experiment faithfulness --model pocket-gpt2,pocket-neox --n 50 --out faithfulness");
  command.positional("NAME", fmt::format("{}", fmt::join(experiment_names(), ", ")),
                     [args](const std::string& text) { args->name = text; });
  args->model.add(command);
  command.option("--out", "FOLDER",
                 "Where results go (default: a folder named after the experiment)", args->out);
  add_shard(command, args->options.shard);
  command.option("--n", "N", "How many prompts (default: as many as in the paper)",
                 args->options.n);
  command.option("--seed", "S", "Seed of every choice (default 0)",
                 [args](const std::string& text) {
                   std::size_t seed = 0;
                   parse_value("--seed", text, seed);
                   args->options.seed = seed;
                 });
  command.option(
      "--corpus", "FILE",
      "Sentences, one a line, # for remarks (default: text sampled from the pocket models)",
      args->corpus);
  command.option("--prompts", "FILE", "sink: factual prompts, one a line", args->prompts);
  command.option(
      "--roles", "FILE|gpt2|find",
      "ioi: heads by role from a table, GPT-2 small's published ones, or found by path patching",
      args->options.roles);
  command.option("--claims", "FILE|gpt2|find", "greater-than: what feeds what, likewise",
                 args->options.claims);
  command.choice("--readout", "faithfulness, beta: what is read at each step (default probability)",
                 args->options.readout, words_of(kReadouts));
  command.flag("--raw-logit", "faithfulness, beta: explain the raw logit, without a contrast",
               args->options.raw_logit);
  command.flag("--whole-sentences",
               "faithfulness, beta: whole sentences as prompts, in place of sentences cut before a "
               "content word",
               args->options.whole_sentences);
  command.flag("--narrow-paths",
               "ioi, greater-than: path patching into queries, keys and values leaves out the MLPs "
               "between",
               args->options.narrow_paths);
  command.flag("--all", "knockout: every writer, not five a layer", args->options.all);
  command.option(
      "--program", "NAME",
      fmt::format("compiled: one program instead of all: {}", fmt::join(compiled_programs(), ", ")),
      args->options.compiled.program);
  command.option("--format", "gpt2|llama", "compiled: one format instead of both",
                 args->options.compiled.format);
  command.option("--noise", "X,X,...",
                 "compiled: noise on the weights, in parts of their size (default 0,0.02)",
                 args->noise);
  command.option("--sharpness", "X", "compiled: attention logits of a match (default 12)",
                 args->options.compiled.sharpness);
  command.option(
      "--save", "FOLDER",
      "compiled: write the models there in Hugging Face format, each with its circuit, and "
      "stop",
      args->save);
  command.flag("--stop-at-bad-line", "Stop at a line that cannot be read, rather than skip it",
               args->options.stop_at_bad_line);
  add_preset(command, args->options.options, "paper");
  add_method(command, args->options.options);
  command.run([args, &context] { run(*args, context); });
}

}  // namespace unpack::cli

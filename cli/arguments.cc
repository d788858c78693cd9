#include "arguments.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "unpack/error.h"
#include "unpack/writers.h"

namespace unpack::cli {

void ModelArguments::add_name(Command& command) {
  command.option(
      "--model", "M",
      fmt::format(
          "A folder, a name in the local Hugging Face cache, or a bundled model (default {})",
          model),
      model);
}

void ModelArguments::add(Command& command) {
  add_name(command);
  add_device(command);
}

void ModelArguments::add_device(Command& command) {
  load.device.clear();  // auto, unless it is asked for by name, when it says why it took the CPU
  load.notice = [](const std::string& line) { std::fputs((line + "\n").c_str(), stderr); };
  command.word("--device",
               "Where to compute (default auto); reference: plain loops in double precision",
               load.device, {"auto", "cpu", "cuda", "reference"});
  command.flag(
      "--weight-products",
      "Keep products of the weights in memory: a second or more once, then every prompt is faster",
      load.weight_products);
  command.flag("--tf32", "Matrix products of a CUDA device in TF32: faster, about three digits",
               load.tf32);
  command.option(
      "--threads", "N", "Threads to use (default: all cores)", [this](const std::string& text) {
        parse_value("--threads", text, load.threads);
        if (load.threads < 1 || load.threads > 4096)
          throw UsageError(fmt::format("--threads takes 1 to 4096, not {}", load.threads));
      });
}

void PromptArguments::add(Command& command, const std::string& help) {
  const Option text =
      command.positional("PROMPT", help, [this](const std::string& value) { prompt = value; });
  command.option("--ids", "N,N,...", "Token ids in place of a prompt, used as they are", ids)
      .excludes(text);
  command.flag("--no-bos", "Leave out the special tokens that go in front of a prompt", no_bos);
  command.flag("--chat",
               "The prompt is the user's turn, or a JSON list of messages, and goes through the "
               "model's chat template",
               chat);
  command.option("--system", "TEXT", "With --chat: a system message in front", system);
  command
      .option("--messages", "FILE", "A conversation in JSON in place of a prompt (implies --chat)",
              messages)
      .excludes(text);
  command.option("--chat-template", "FILE",
                 "A Jinja template in place of the model's own (implies --chat)", chat_template);
}

namespace {

std::string read_file(const std::string& name) {
  std::ifstream in(name, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in || std::filesystem::is_directory(name))
    throw InputError(fmt::format("{}: cannot read the file", name));
  return text;
}

}  // namespace

void PromptArguments::resolve(bool required) {
  chat = chat || messages || chat_template;
  if (system && !chat) throw UsageError("--system goes with --chat");
  if (chat && ids) throw UsageError("--chat takes a prompt or messages, not --ids");
  if (chat && no_bos)
    throw UsageError("--no-bos does not go with --chat: the template writes the special tokens");
  if (messages) {
    prompt = read_file(*messages);
    return;
  }
  if (ids) return;
  if (prompt == "-") {
    prompt = read_stdin();
  } else if (!prompt && required) {
    if (!stdin_is_terminal()) prompt = read_stdin();
    if (!prompt || prompt->empty())
      throw UsageError("no prompt: give it in quotes, as --ids 3,17,5, or through a pipe");
  }
}

std::vector<TokenId> PromptArguments::encode(const Model& model) {
  if (chat) {
    Conversation conversation = make_conversation(prompt.value_or(""), system);
    if (chat_template) {
      conversation.chat_template = read_file(*chat_template);
      conversation.template_origin = *chat_template;
    }
    made = chat_prompt(model, conversation);
    return made->ids;
  }
  if (!ids) return model.encode_prompt(prompt.value_or(""), no_bos);
  for (const TokenId id : *ids) {
    if (id < 0 || id >= model.config().vocab_size) {
      throw InputError(
          fmt::format("token id {} is outside the vocabulary of {}: give ids from 0 to {}", id,
                      model.config().name, model.config().vocab_size - 1));
    }
  }
  return *ids;
}

void TargetArguments::add(Command& command) {
  const Option text = command.option(
      "--target", "TEXT", "The token to explain (default: the model's own top prediction)", target);
  command.option("--target-id", "N,N,...", "The same by id; several ids are a group", target_ids)
      .excludes(text);
  const Option against = command.option(
      "--versus", "TEXT", "Contrast token (default: the mean of the vocabulary)", versus);
  const Option against_ids =
      command
          .option("--versus-id", "N,N,...", "The same by id; several ids are a group", versus_ids)
          .excludes(against);
  command.flag("--raw-logit", "No contrast: explain the raw logit", raw)
      .excludes(against)
      .excludes(against_ids);
  command.option("--position", "P",
                 "Position of the prediction (default: the last; negative counts from the end)",
                 position);
}

Target TargetArguments::resolve(const Model& model, int length) const {
  const int at = resolve_position(position, length);
  Target result = tokens(model);
  result.position = at;
  return result;
}

Target TargetArguments::tokens(const Model& model) const {
  Target result;
  result.position = position;
  result.raw = raw;
  if (target) result.ids = {model.single_token(*target)};
  if (target_ids) result.ids = *target_ids;
  if (versus) result.versus = std::vector<TokenId>{model.single_token(*versus)};
  if (versus_ids) result.versus = *versus_ids;
  return result;
}

void add_method(Command& command, Options& options) {
  command.option("--beta", "B",
                 fmt::format("Floor of every denominator (default {})", options.beta),
                 options.beta);
  command.option("--weights", "wK,wQ,wV",
                 "How a head's credit is divided between its branches (default a third each)",
                 options.weights);
  command.option("--mlp-weights", "wG,wU",
                 "The same for gate and up of a gated MLP (default a half each)",
                 options.mlp_weights);
  command.option("--expert-weights", "wR,wG,wU",
                 "The same for router, gate and up of a mixture (default a third each)",
                 options.expert_weights);
  command.choice("--dispatch",
                 fmt::format("Direction that shares out indirect credit (default {})",
                             to_string(options.dispatch)),
                 options.dispatch, {{"aligned", Dispatch::aligned}, {"gate", Dispatch::gate}});
  command.choice("--mlp",
                 fmt::format("How an MLP passes credit on (default {})", to_string(options.mlp)),
                 options.mlp,
                 {{"per-neuron", MlpRule::per_neuron},
                  {"linearized", MlpRule::linearized},
                  {"l2", MlpRule::l2}});
  command.choice(
      "--scores",
      fmt::format("Key and query scores as they are or less their mean over sources (default {})",
                  to_string(options.scores)),
      options.scores, {{"raw", Scores::raw}, {"centered", Scores::centered}});
}

void QuestionArguments::add(Command& command) {
  target.add(command);
  command.option("--root", "NODE",
                 "Explain a head or an MLP at a position instead: A8.H6@13, MLP3@-1",
                 question.root);
  command.choice("--reroot",
                 "Direction at that root: what it wrote, or the target (default output)",
                 question.options.reroot, {{"output", Reroot::output}, {"target", Reroot::target}});
  PathQuery& paths = question.paths;
  command.option("--top-paths", "K",
                 fmt::format("List the K strongest paths (default {})", paths.top), top_paths);
  command.option(
      "--tau", "T",
      "List every path above this threshold (with --top-paths: the K strongest of these)",
      [&paths](const std::string& text) {
        parse_value("--tau", text, paths.tau);
        if (*paths.tau <= 0)
          throw UsageError(fmt::format("--tau takes a number above 0, not {}", text));
      });
  command.choice("--tau-rule", "What the threshold is applied to (default named)", paths.rule,
                 {{"named", TauRule::named}, {"entry", TauRule::entry}});
  command.choice("--branch", "Only paths whose last hop takes this branch", paths.branch,
                 {{"K", Branch::K},
                  {"Q", Branch::Q},
                  {"V", Branch::V},
                  {"G", Branch::G},
                  {"U", Branch::U},
                  {"R", Branch::R}});
  command.option("--through", "COMPONENT", "Only paths that pass through this component",
                 paths.through);
  command.option("--from", "POSITION", "Only paths from this source position", paths.from);
  command.option("--min-layer", "L",
                 "Only paths whose heads and MLPs all lie in this layer or above", paths.min_layer);
  command.choice("--sign", "Only paths of this sign", paths.sign,
                 {{"positive", 1}, {"negative", -1}});
  add_method(command, question.options);
  command.word("--method", "How credit is passed on (default unpack)", method,
               {"unpack", "ifr", "attnlrp", "cplrp"});
}

Question& QuestionArguments::check() {
  constexpr std::size_t kAllPaths = 10'000'000;  // as many as the library lists
  question.options.check();
  if (method != "unpack" && question.root)
    throw UsageError("--root goes with --method unpack alone: the baselines explain the target");
  // With a threshold alone every path above it is listed.
  if (question.paths.tau && !top_paths) question.paths.top = kAllPaths;
  if (top_paths) question.paths.top = *top_paths;
  return question;
}

void add_shard(Command& command, Shard& shard) {
  command.option("--shard", "I/N", "Do the I-th of N parts (1/4 ... 4/4); unpack merge joins them",
                 [&shard](const std::string& text) { shard = parse_shard(text); });
}

bool stdin_is_terminal() { return isatty(STDIN_FILENO); }

std::string read_stdin() {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = read(STDIN_FILENO, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw InputError(fmt::format("cannot read stdin: {}", std::strerror(errno)));
    if (n == 0) break;
    text.append(buffer, static_cast<std::size_t>(n));
  }
  // The line end that echo and editors put there is not part of the prompt.
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

}  // namespace unpack::cli

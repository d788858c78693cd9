#include "arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "unpack/error.h"
#include "unpack/given_file.h"
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
  load.notice = [](const std::string& line) {
    std::fputs((Error(line).what() + std::string("\n")).c_str(), stderr);
  };
  command.word("--device",
               "Where to compute (default auto); reference: plain loops in double precision",
               load.device, {"auto", "cpu", "cuda", "reference"});
  command.flag(
      "--weight-products",
      "Keep products of the weights in memory: a second or more once, then every prompt is faster",
      load.weight_products);
  command.flag("--tf32", "Matrix products of a CUDA device in TF32: faster, about three digits",
               load.tf32);
  command.flag("--exact-fp32",
               "Every matrix product of a CUDA device in plain single precision: slower",
               load.exact_fp32);
  command.option("--threads", "N", "Threads to use (default: all cores)",
                 [this](const std::string& text) {
                   constexpr int kMost = 4096;
                   load.threads = parse_integer("--threads", text, 1, kMost);
                 });
  command.flag("--no-mmap",
               "Read weight files into memory: a file that is changed meanwhile then does no harm",
               no_mmap);
}

LoadOptions ModelArguments::options() const {
  LoadOptions given = load;
  given.mapped = !no_mmap;
  return given;
}

void ChatArguments::add(Command& command) {
  command.flag("--chat",
               "The prompt is the user's turn, or a JSON list of messages, and goes through the "
               "model's chat template",
               chat);
  command.option("--system", "TEXT", "With --chat: a system message in front", system);
  command.option("--chat-template", "FILE",
                 "A Jinja template in place of the model's own (implies --chat)", chat_template);
}

void PromptArguments::add(Command& command, const std::string& help) {
  const Option text =
      command.positional("PROMPT", help, [this](const std::string& value) { prompt = value; });
  command.option("--ids", "N,N,...", "Token ids in place of a prompt, used as they are", ids)
      .excludes(text);
  command.flag("--no-bos", "Leave out the special tokens that go in front of a prompt", no_bos);
  command
      .option("--messages", "FILE", "A conversation in JSON in place of a prompt (implies --chat)",
              messages)
      .excludes(text);
  ChatArguments::add(command);
}

ChatSettings ChatArguments::settings() const {
  ChatSettings out;
  out.on = chat;
  out.system = system;
  return out;
}

void ChatArguments::read_template(ChatSettings& settings) const {
  if (!chat_template) return;
  settings.chat_template = read_given_file(*chat_template);
  settings.template_origin = *chat_template;
}

GivenPrompt PromptArguments::given() const {
  GivenPrompt out;
  if (messages) {
    out.messages = prompt;
  } else if (ids) {
    out.ids = ids;
  } else {
    out.text = prompt.value_or("");
  }
  out.no_bos = no_bos;
  out.chat = settings();
  return out;
}

void PromptArguments::resolve(bool required) {
  chat = chat || messages || chat_template;
  given().check("--");
  if (messages) {
    prompt = read_given_file(*messages);
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

const std::vector<TokenId>& PromptArguments::encode(const Model& model) {
  GivenPrompt source = given();
  read_template(source.chat);
  if (ids) {
    for (const TokenId id : *ids) {
      if (id < 0 || id >= model.config().vocab_size)
        throw InputError(fmt::format("ids: token id {} is outside the vocabulary (0 to {})", id,
                                     model.config().vocab_size - 1));
    }
  }
  made = make_prompt(model, source);
  return made.ids;
}

Option QuestionArguments::field(Command& command, const std::string& name, const std::string& type,
                                const std::string& help) {
  const std::string field = field_name(name);
  return command.option(name, type, help, [this, field](const std::string& text) {
    if (field == "target" || field == "versus") {
      texts_.emplace_back(field, text_field(text));
    } else {
      apply_fields({{field, text_field(text)}}, asked_);
    }
  });
}

void QuestionArguments::add_target(Command& command) {
  const Option text = field(command, "--target", "TEXT",
                            "The token to explain (default: the model's own top prediction)");
  field(command, "--target-id", "N,N,...", "The same by id; several ids are a group")
      .excludes(text);
  const Option against =
      field(command, "--versus", "TEXT", "Contrast token (default: the mean of the vocabulary)");
  const Option against_ids =
      field(command, "--versus-id", "N,N,...", "The same by id; several ids are a group")
          .excludes(against);
  command.flag("--raw-logit", "No contrast: explain the raw logit", asked_.question.target.raw)
      .excludes(against)
      .excludes(against_ids);
  field(command, "--position", "P",
        "Position of the prediction (default: the last; negative counts from the end)");
}

void add_preset(Command& command, Options& options, const std::string& preset) {
  options = preset_options(preset);
  command.option("--preset", "NAME",
                 fmt::format("Settings that go together: {} (default {}); options beside it "
                             "override it",
                             fmt::join(preset_names(), ", "), preset),
                 [&options](const std::string& name) { options = preset_options(name); });
}

void add_method(Command& command, Options& options) {
  const auto add = [&](const std::string& name, const std::string& type, const std::string& help) {
    command.option(name, type, help, [&options, field = field_name(name)](const std::string& text) {
      Asked asked;
      asked.question.options = options;
      apply_fields({{field, text_field(text)}}, asked);
      options = asked.question.options;
    });
  };
  add("--beta", "B", fmt::format("Floor of every denominator (default {})", options.beta));
  add("--weights", "wK,wQ,wV",
      "How a head's credit is divided between its branches (default a third each)");
  add("--mlp-weights", "wG,wU", "The same for gate and up of a gated MLP (default a half each)");
  add("--expert-weights", "wR,wG,wU",
      "The same for router, gate and up of a mixture (default a third each)");
  add("--direction", "output|read",
      fmt::format("Share out indirect credit along what was written, or along how it was read "
                  "(default {})",
                  to_string(options.direction)));
  add("--dispatch", "aligned|gate",
      fmt::format("Direction that shares out indirect credit (default {})",
                  to_string(options.dispatch)));
  add("--mlp", "per-neuron|linearized|l2",
      fmt::format("How an MLP passes credit on (default {})", to_string(options.mlp)));
  add("--scores", "raw|centered",
      fmt::format("Key and query scores as they are or less their mean over sources (default {})",
                  to_string(options.scores)));
  add("--floor", "F",
      fmt::format("With --direction read: least denominator of key and query shares, in logits "
                  "(default {:g})",
                  options.floor));
  add("--keys", "source|spread",
      fmt::format("With --direction read: key credit stays at its source, or is spread over those "
                  "it competes with (default {})",
                  to_string(options.keys)));
}

void QuestionArguments::add(Command& command) {
  add_preset(command, asked_.question.options);
  add_target(command);
  field(command, "--root", "NODE",
        "Explain a head or an MLP at a position instead: A8.H6@13, MLP3@-1");
  field(command, "--reroot", "output|target",
        "Direction at that root: what it wrote, or the target (default output)");
  field(command, "--top-paths", "K",
        fmt::format("List the K strongest paths (default {}, at most {})", PathQuery().top,
                    kMostPaths));
  field(command, "--tau", "T",
        "List every path above this threshold (with --top-paths: the K strongest of these)");
  field(command, "--tau-rule", "named|entry", "What the threshold is applied to (default named)");
  field(command, "--branch", "K|Q|V|G|U|R", "Only paths whose last hop takes this branch");
  field(command, "--through", "COMPONENT", "Only paths that pass through this component");
  field(command, "--from", "POSITION", "Only paths from this source position");
  field(command, "--min-layer", "L",
        "Only paths whose heads and MLPs all lie in this layer or above");
  field(command, "--sign", "positive|negative", "Only paths of this sign");
  add_method(command, asked_.question.options);
  field(command, "--method", "unpack|ifr|attnlrp|cplrp",
        "How credit is passed on (default unpack)");
}

void QuestionArguments::check() const {
  if (asked_.method != Method::unpack && asked_.question.root)
    throw UsageError("root goes with the method unpack alone: the baselines explain the target");
}

void QuestionArguments::read_tokens(const Model& model) { apply_fields(texts_, asked_, &model); }

Asked& QuestionArguments::resolve(const Model& model, int length) {
  read_tokens(model);
  check_asked(asked_, model, length);
  return asked_;
}

void add_shard(Command& command, Shard& shard) {
  command.option("--shard", "I/N", "Do the I-th of N parts (1/4 ... 4/4); unpack merge joins them",
                 [&shard](const std::string& text) { shard = parse_shard(text); });
}

bool stdin_is_terminal() { return isatty(STDIN_FILENO); }

std::string read_stdin() {
  constexpr std::size_t kLargest = std::size_t{256} << 20;
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = read(STDIN_FILENO, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw InputError(fmt::format("cannot read stdin: {}", std::strerror(errno)));
    if (n == 0) break;
    text.append(buffer, n);
    if (text.size() > kLargest)
      throw InputError(
          fmt::format("stdin has more than {} MiB: no prompt is that long", kLargest >> 20));
  }
  // The line end that echo and editors put there is not part of the prompt.
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

}  // namespace unpack::cli

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
  command.positional("PROMPT", help, [this](const std::string& value) { prompt = value; });
  command.option("--ids", "N,N,...", "Token ids in place of a prompt, used as they are", ids);
  command.flag("--no-bos", "Leave out the special tokens that go in front of a prompt", no_bos);
  command.option("--messages", "FILE",
                 "A conversation in JSON in place of a prompt (implies --chat)", messages);
  ChatArguments::add(command);
}

ChatSettings ChatArguments::settings() const {
  ChatSettings out;
  out.on = chat || chat_template;
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
  out.text = prompt;
  out.ids = ids;
  if (messages) out.messages = conversation_;
  out.no_bos = no_bos;
  out.chat = settings();
  return out;
}

void PromptArguments::resolve(bool required) {
  chat = chat || messages || chat_template;
  given().check();
  if (messages) {
    conversation_ = read_given_file(*messages);
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
  made = make_prompt(model, source);
  return made.ids;
}

namespace {

using AddField = std::function<Option(const std::string& name, const std::string& type,
                                      const std::string& help)>;

void preset_option(const std::string& preset, const AddField& add) {
  add("--preset", "NAME",
      fmt::format("Settings that go together: {} (default {}); options beside it override it",
                  fmt::join(preset_names(), ", "), preset));
}

void method_options(const Options& defaults, const AddField& add) {
  add("--beta", "B", fmt::format("Floor of every denominator (default {})", defaults.beta));
  add("--weights", "wK,wQ,wV",
      "How a head's credit is divided between its branches (default a third each)");
  add("--mlp-weights", "wG,wU", "The same for gate and up of a gated MLP (default a half each)");
  add("--expert-weights", "wR,wG,wU",
      "The same for router, gate and up of a mixture (default a third each)");
  add("--direction", "output|read",
      fmt::format("Share out indirect credit along what was written, or along how it was read "
                  "(default {})",
                  to_string(defaults.direction)));
  add("--dispatch", "aligned|gate",
      fmt::format("Direction that shares out indirect credit (default {})",
                  to_string(defaults.dispatch)));
  add("--mlp", "per-neuron|linearized|l2",
      fmt::format("How an MLP passes credit on (default {})", to_string(defaults.mlp)));
  add("--scores", "raw|centered",
      fmt::format("Key and query scores as they are or less their mean over sources (default {})",
                  to_string(defaults.scores)));
  add("--floor", "F",
      fmt::format("With --direction read: least denominator of key and query shares, in logits "
                  "(default {:g})",
                  defaults.floor));
  add("--keys", "source|spread",
      fmt::format("With --direction read: key credit stays at its source, or is spread over those "
                  "it competes with (default {})",
                  to_string(defaults.keys)));
}

// What is no part of a question is read as it is met.
AddField read_at_once(Command& command, Options& options) {
  return [&command, &options](const std::string& name, const std::string& type,
                              const std::string& help) {
    return command.option(name, type, help,
                          [&options, field = field_name(name)](const std::string& text) {
                            options = read_options({{field, text_field(text)}}, options);
                          });
  };
}

}  // namespace

void add_preset(Command& command, Options& options, const std::string& preset) {
  options = preset_options(preset);
  preset_option(preset, read_at_once(command, options));
}

void add_method(Command& command, Options& options) {
  method_options(options, read_at_once(command, options));
}

Option QuestionArguments::field(Command& command, const std::string& name, const std::string& type,
                                const std::string& help) {
  return command.option(name, type, help,
                        [this, field = field_name(name)](const std::string& text) {
                          fields_.emplace_back(field, text_field(text));
                        });
}

void QuestionArguments::add_target(Command& command) {
  field(command, "--target", "TEXT",
        "The token to explain (default: the model's own top prediction)");
  field(command, "--target-id", "N,N,...", "The same by id; several ids are a group");
  field(command, "--versus", "TEXT", "Contrast token (default: the mean of the vocabulary)");
  field(command, "--versus-id", "N,N,...", "The same by id; several ids are a group");
  command.flag("--raw-logit", "No contrast: explain the raw logit", raw_logit_);
  field(command, "--position", "P",
        "Position of the prediction (default: the last; negative counts from the end)");
}

void QuestionArguments::add(Command& command) {
  const AddField add = [&](const std::string& name, const std::string& type,
                           const std::string& help) { return field(command, name, type, help); };
  preset_option(kDefaultPreset, add);
  add_target(command);
  add("--root", "NODE", "Explain a head or an MLP at a position instead: A8.H6@13, MLP3@-1");
  add("--reroot", "output|target",
      "Direction at that root: what it wrote, or the target (default output)");
  add("--top-paths", "K",
      fmt::format("List the K strongest paths (default {}, at most {})", PathQuery().top,
                  kMostPaths));
  add("--tau", "T",
      "List every path above this threshold (with --top-paths: the K strongest of these)");
  add("--tau-rule", "named|entry", "What the threshold is applied to (default named)");
  add("--branch", "K|Q|V|G|U|R", "Only paths whose last hop takes this branch");
  add("--through", "COMPONENT", "Only paths that pass through this component");
  add("--from", "POSITION", "Only paths from this source position");
  add("--min-layer", "L", "Only paths whose heads and MLPs all lie in this layer or above");
  add("--sign", "positive|negative", "Only paths of this sign");
  method_options(default_options(), add);
  add("--method", "unpack|ifr|attnlrp|cplrp", "How credit is passed on (default unpack)");
}

void QuestionArguments::add_answer(Command& command) {
  field(command, "--answer", "TEXT",
        "Explain a continuation of several tokens: the sum over its tokens, each by its own row");
  field(command, "--versus-answer", "TEXT", "With --answer: another answer to set it against");
  command.repeated("--group", "NAME=from:to",
                   "Add up the credit of positions from..to under a name (may be repeated)",
                   groups_);
  field(command, "--group-by", "sentence|line|paragraph|turn",
        "Add up the credit of every sentence, line, paragraph, or turn of a conversation");
}

Fields QuestionArguments::given() const {
  Fields fields = fields_;
  Field field;
  if (raw_logit_) {
    field.value = true;
    fields.emplace_back("raw_logit", field);
  }
  if (!groups_.empty()) {
    FieldList list;
    for (const std::string& group : groups_) {
      field.value = group;
      list.push_back(field);
    }
    field.value = list;
    fields.emplace_back("group", field);
  }
  return fields;
}

Asked QuestionArguments::read(const Model& model) const {
  Asked asked;
  apply_fields(given(), asked, &model);
  return asked;
}

Asked QuestionArguments::resolve(const Model& model, int length) const {
  Asked asked = read(model);
  check_asked(asked, model, length);
  return asked;
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

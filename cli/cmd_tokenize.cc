#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <system_error>

#include "arguments.h"
#include "commands.h"
#include "unpack/error.h"
#include "unpack/fields.h"
#include "unpack/models.h"
#include "unpack/report.h"
#include "unpack/tokenizer.h"

namespace unpack::cli {
namespace {

struct TokenizeArguments {
  std::optional<std::string> text, jsonl;
  ModelArguments model;
  bool bos = false, special = false;
  Outputs outputs;
};

std::filesystem::path tokenizer_folder(const std::string& name) {
  if (Tokenizer::exists(name))
    return name;  // files of a tokenizer alone are no model, but enough here
  return locate_model(name);
}

class TextEncoder {
 public:
  explicit TextEncoder(const TokenizeArguments& args)
      : folder_(tokenizer_folder(args.model.model)),
        tokenizer_(open(folder_)),
        special_(args.special) {
    if (args.bos) prefix_ = prompt_prefix(folder_, tokenizer_);
  }
  std::vector<TokenId> encode(std::string_view text) const {
    std::vector<TokenId> ids = prefix_;
    const std::vector<TokenId> own = tokenizer_.encode(text, special_);
    ids.insert(ids.end(), own.begin(), own.end());
    return ids;
  }
  std::string token_text(TokenId id) const { return tokenizer_.token_text(id); }

 private:
  static Tokenizer open(const std::filesystem::path& folder) {
    if (const std::optional<Tokenizer> found = find_tokenizer(folder)) return *found;
    return Tokenizer::load(folder);  // says what is missing
  }

  std::filesystem::path folder_;
  Tokenizer tokenizer_;
  bool special_;
  std::vector<TokenId> prefix_;
};

// As std::getline, but a line has an end: a device may have none.
bool next_line(std::istream& in, std::string& line, const std::string& origin) {
  constexpr std::size_t kLongestLine = std::size_t{4} << 20;
  constexpr int kEnd = std::char_traits<char>::eof();
  line.clear();
  for (int c = 0; (c = in.rdbuf()->sbumpc()) != kEnd;) {
    if (c == '\n') return true;
    if (line.size() == kLongestLine)
      throw InputError(fmt::format("{} has more than {} bytes", origin, kLongestLine));
    line.push_back(c);
  }
  return !line.empty();
}

void encode_lines(const TextEncoder& encoder, const std::string& file) {
  std::ifstream opened;
  if (file != "-") {
    if (std::error_code error; std::filesystem::is_directory(file, error))
      throw InputError(fmt::format("cannot read {}: it is a folder", file));
    opened.open(file);
    if (!opened) throw InputError(fmt::format("cannot read {}: {}", file, std::strerror(errno)));
  }
  std::istream& in = file == "-" ? std::cin : opened;
  std::string line, out;
  for (int number = 1;; ++number) {
    const std::string origin = fmt::format("line {} of {}", number, file == "-" ? "stdin" : file);
    if (!next_line(in, line, origin)) break;
    out += fmt::format("[{}]\n", fmt::join(encoder.encode(read_json_text(line, origin)), ","));
    if (out.size() > 1 << 16) print(std::exchange(out, {}));
  }
  print(out);
}

std::vector<Token> tokens_of(const TextEncoder& encoder, const std::vector<TokenId>& ids) {
  std::vector<Token> tokens;
  for (std::size_t i = 0; i < ids.size(); ++i)
    tokens.push_back({static_cast<int>(i), ids[i], encoder.token_text(ids[i])});
  return tokens;
}

std::string tokens_table(const TextEncoder& encoder, const std::vector<TokenId>& ids) {
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    text += fmt::format("{:>5} {:>7}  {}\n", i, ids[i], quoted(encoder.token_text(ids[i])));
  }
  return text;
}

void run_tokenize(TokenizeArguments& args) {
  args.outputs.check();
  if (args.jsonl) return encode_lines(TextEncoder(args), *args.jsonl);
  if (args.text == "-" || (!args.text && !stdin_is_terminal())) args.text = read_stdin();
  if (!args.text)
    throw UsageError("no text: give it in quotes, through a pipe, or as --jsonl FILE");
  const TextEncoder encoder(args);
  const std::vector<TokenId> ids = encoder.encode(*args.text);
  args.outputs.write("--json", [&] { return to_json(tokens_of(encoder, ids)); });
  if (!args.outputs.any()) print(tokens_table(encoder, ids));
}

}  // namespace

void add_tokenize(App& app, Context&) {
  const auto args = std::make_shared<TokenizeArguments>();
  Command command = app.add(
      "tokenize", "How a text splits into tokens; a folder with tokenizer files alone will do",
      "unpack tokenize \"Mary and John went to the store\" --model pocket-neox");
  const Option text =
      command.positional("TEXT", "The text; - (or nothing, in a pipe) reads it from stdin",
                         [args](const std::string& value) { args->text = value; });
  args->model.add_name(command);
  command.flag("--bos", "With the special tokens that go in front of a prompt", args->bos);
  command.flag("--special", "Recognise special tokens that are written in the text", args->special);
  args->outputs.add_json(command);
  command
      .option("--jsonl", "FILE|-",
              "Many texts: a JSON string a line in, a JSON array of ids a line out", args->jsonl)
      .excludes(text);
  command.run([args] { run_tokenize(*args); });
}

}  // namespace unpack::cli

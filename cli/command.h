// A thin face over the option parser, so that a command needs to include nothing heavier than this.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "unpack/config.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace unpack::cli {

// The field that an option stands for: --max-tokens is max_tokens. Messages name the field, here as
// in every other front end.
std::string field_name(const std::string& option);
std::string option_name(std::string field);

// How the text of an option becomes a value; UsageError names the field and what it takes.
void parse_value(const std::string& option, const std::string& text, std::string& value);
void parse_value(const std::string& option, const std::string& text, int& value);
void parse_value(const std::string& option, const std::string& text, std::size_t& value);
void parse_value(const std::string& option, const std::string& text, double& value);
// Whole numbers with commas between them: token ids, positions, lengths.
void parse_value(const std::string& option, const std::string& text, std::vector<int>& value);
template <class T>
void parse_value(const std::string& option, const std::string& text, std::optional<T>& value) {
  T inner{};
  parse_value(option, text, inner);
  value = std::move(inner);
}
// A whole number from `lowest` to `highest`.
int parse_integer(const std::string& option, const std::string& text, int lowest, int highest);

template <class T>
struct Unwrap {
  using type = T;
};
template <class T>
struct Unwrap<std::optional<T>> {
  using type = T;
};
template <class T>
using Unwrapped = typename Unwrap<T>::type;

class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option excludes(const Option& other) const;  // both together are a bad command line
  bool given() const;

 private:
  CLI::Option* option_;
};

class Command {
 public:
  Command(CLI::App* app, std::function<void()>& chosen) : app_(app), chosen_(chosen) {}

  using Setter = std::function<void(const std::string& text)>;
  Option positional(const std::string& name, const std::string& help, Setter set);
  Option list(const std::string& name, const std::string& help,
              std::vector<std::string>& values);  // any number of positionals
  Option option(const std::string& name, const std::string& type, const std::string& help,
                Setter set);
  Option repeated(const std::string& name, const std::string& type, const std::string& help,
                  std::vector<std::string>& values);
  Option flag(const std::string& name, const std::string& help, bool& value);

  template <class T>
  Option option(const std::string& name, const std::string& type, const std::string& help,
                T& value) {
    return option(name, type, help, Setter([name, &value](const std::string& text) {
                    parse_value(name, text, value);
                  }));
  }
  // One of a few words. `value` may be an optional.
  template <class T>
  Option choice(const std::string& name, const std::string& help, T& value,
                std::vector<std::pair<std::string, Unwrapped<T>>> words) {
    std::vector<std::string> names;
    names.reserve(words.size());
    for (const auto& word : words) names.push_back(word.first);
    return option(name, join(names), help,
                  Setter([name, &value, names, words](const std::string& text) {
                    value = words[word_index(name, text, names)].second;
                  }));
  }
  Option word(const std::string& name, const std::string& help, std::string& value,
              const std::vector<std::string>& words);

  // The same as a positional that must be given.
  Option word_argument(const std::string& name, const std::string& help, std::string& value,
                       const std::vector<std::string>& words);

  void run(std::function<void()> action);  // once the whole command line was parsed

 private:
  static std::string join(const std::vector<std::string>& words);
  static std::size_t word_index(const std::string& name, const std::string& text,
                                const std::vector<std::string>& words);
  CLI::App* app_;
  std::function<void()>& chosen_;
};

// The program: its commands, and the parse of a command line.
class App {
 public:
  explicit App(std::function<std::string()> version);
  ~App();
  Command add(const std::string& name, const std::string& summary, const std::string& example);

  // What was asked for: a text for stdout (help, version), or a command to run.
  struct Parsed {
    std::string text;
    std::function<void()> action;
  };
  Parsed parse(int argc, const char* const* argv);  // throws UsageError

  // The whole command line as data, for shell completion and the manual page.
  struct OptionInfo {
    std::vector<std::string> names;  // "-h", "--help"; a positional's own name where it has none
    std::string type;                // "FILE", "auto|always|never"; empty for a flag
    std::string help;
    bool positional = false;
    bool list = false;  // may be given more than once
    // "auto|always|never" as words, and a positional's help "sink, ioi"; empty where neither is a
    // list of words.
    std::vector<std::string> words() const;
  };
  struct CommandInfo {
    std::string name, summary, example;
    std::vector<OptionInfo> options;
  };
  std::string summary() const;
  std::vector<CommandInfo> describe() const;

 private:
  std::unique_ptr<CLI::App> app_;
  std::function<void()> chosen_;  // the action of the command that was given
};

}  // namespace unpack::cli

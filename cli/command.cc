#include "command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>

#include "unpack/error.h"
#include "unpack/fields.h"

namespace unpack::cli {
namespace {

std::string joined_lines(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (std::size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at))
    text.replace(at, 1, "; ");
  return text;
}

// Option lines without the parser's own remarks on what excludes what: the help texts say it where
// it matters.
class PlainFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_type_name().empty() ? "" : " " + option->get_type_name();
  }
};

// A setter sees the last text of an option; CLI11 itself makes sure that there is one.
CLI::callback_t call(Command::Setter set) {
  return [set = std::move(set)](const CLI::results_t& texts) {
    set(texts.back());
    return true;
  };
}

}  // namespace

std::string field_name(const std::string& option) {
  std::string name = option.substr(std::min(option.find_first_not_of('-'), option.size()));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string option_name(std::string field) {
  std::replace(field.begin(), field.end(), '_', '-');
  return "--" + field;
}

void parse_value(const std::string&, const std::string& text, std::string& value) { value = text; }

void parse_value(const std::string& option, const std::string& text, int& value) {
  value = read_integer(field_name(option), text_field(text));
}

int parse_integer(const std::string& option, const std::string& text, int lowest, int highest) {
  return read_integer(field_name(option), text_field(text), lowest, highest);
}

void parse_value(const std::string& option, const std::string& text, std::size_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size())
    wrong_value(field_name(option), "a whole number of 0 or more", text_field(text));
}

void parse_value(const std::string& option, const std::string& text, double& value) {
  value = read_number(field_name(option), text_field(text));
}

void parse_value(const std::string& option, const std::string& text, std::vector<int>& value) {
  constexpr std::size_t kMost = 1'000'000;
  value = read_integers(field_name(option), text_field(text), kMost);
  if (value.empty()) wrong_value(field_name(option), "at least one number", text_field(text));
}

Option Option::excludes(const Option& other) const {
  option_->excludes(other.option_);
  return *this;
}

bool Option::given() const { return option_->count() > 0; }

Option Command::positional(const std::string& name, const std::string& help, Setter set) {
  return Option(app_->add_option(name, call(std::move(set)), help)->type_name(""));
}

Option Command::list(const std::string& name, const std::string& help,
                     std::vector<std::string>& values) {
  return Option(app_->add_option(name, values, help)->type_name(""));
}

Option Command::option(const std::string& name, const std::string& type, const std::string& help,
                       Setter set) {
  return Option(app_->add_option(name, call(std::move(set)), help)->type_name(type));
}

Option Command::repeated(const std::string& name, const std::string& type, const std::string& help,
                         std::vector<std::string>& values) {
  return Option(app_->add_option(name, values, help + "; may be repeated")
                    ->type_name(type)
                    ->allow_extra_args(false));
}

Option Command::flag(const std::string& name, const std::string& help, bool& value) {
  return Option(app_->add_flag(name, value, help));
}

Option Command::word(const std::string& name, const std::string& help, std::string& value,
                     const std::vector<std::string>& words) {
  return option(name, join(words), help, Setter([name, words, &value](const std::string& text) {
                  value = words[word_index(name, text, words)];
                }));
}

Option Command::word_argument(const std::string& name, const std::string& help, std::string& value,
                              const std::vector<std::string>& words) {
  const auto set = [name, words, &value](const std::string& text) {
    value = words[word_index(name, text, words)];
  };
  return Option(app_->add_option(name, call(set), help)->type_name(join(words))->required());
}

void Command::run(std::function<void()> action) {
  app_->final_callback([&chosen = chosen_, action = std::move(action)] { chosen = action; });
}

std::string Command::join(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, "|"));
}

std::size_t Command::word_index(const std::string& name, const std::string& text,
                                const std::vector<std::string>& words) {
  return read_choice(field_name(name), text_field(text), words);
}

App::App(std::function<std::string()> version)
    : app_(std::make_unique<CLI::App>("Which tokens, heads and neurons made a transformer predict "
                                      "this? Exact credit, by named K/Q/V routes.",
                                      "unpack")) {
  app_->set_version_flag("--version", std::move(version),
                         "Print version, build type, CPU kernels in use and devices");
  const auto formatter = std::make_shared<PlainFormatter>();
  formatter->column_width(36);
  formatter->label("OPTIONS", "options");
  formatter->label("SUBCOMMAND", "COMMAND ...");
  app_->formatter(formatter);
  app_->require_subcommand(1);
  app_->footer("unpack COMMAND --help shows the options of a command and an example.");
}

App::~App() = default;

Command App::add(const std::string& name, const std::string& summary, const std::string& example) {
  CLI::App* command = app_->add_subcommand(name, summary);
  command->group("Commands");
  command->footer("Example:\n  " + example);
  return Command(command, chosen_);
}

std::vector<std::string> App::OptionInfo::words() const {
  std::vector<std::string> out;
  const bool listed = positional && type.empty();
  const std::string& text = listed ? help : type;
  const std::string between = listed ? ", " : "|";
  if (text.find(between) == std::string::npos) return out;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t bar = std::min(text.find(between, start), text.size());
    const std::string word = text.substr(start, bar - start);
    const bool plain = !word.empty() && std::none_of(word.begin(), word.end(), [](char c) {
      return std::isupper(static_cast<unsigned char>(c)) || c == ' ' || c == ',';
    });
    if (!plain || word == "-") return {};  // "FILE|-" is no choice
    out.push_back(word);
    start = bar + between.size();
  }
  return out;
}

std::string App::summary() const { return app_->get_description(); }

std::vector<App::CommandInfo> App::describe() const {
  std::vector<CommandInfo> out;
  for (const CLI::App* command : app_->get_subcommands([](const CLI::App*) { return true; })) {
    CommandInfo info{command->get_name(), command->get_description(), command->get_footer(), {}};
    for (const CLI::Option* option : command->get_options()) {
      OptionInfo entry;
      for (const std::string& name : option->get_snames()) entry.names.push_back("-" + name);
      for (const std::string& name : option->get_lnames()) entry.names.push_back("--" + name);
      entry.positional = entry.names.empty();
      if (entry.positional) entry.names = {option->get_name(true)};
      if (option->get_type_size() != 0) entry.type = option->get_type_name();
      entry.help = option->get_description();
      entry.list = option->get_items_expected_max() > 1;
      info.options.push_back(std::move(entry));
    }
    out.push_back(std::move(info));
  }
  return out;
}

App::Parsed App::parse(int argc, const char* const* argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return {app_->help(), {}};
  } catch (const CLI::CallForVersion& version) {
    return {std::string(version.what()) + "\n", {}};
  } catch (const CLI::ParseError& error) {
    const std::vector<CLI::App*> chosen = app_->get_subcommands();
    const std::string where =
        chosen.empty() ? "unpack --help" : "unpack " + chosen.front()->get_name() + " --help";
    if (chosen.empty() && argc < 2)
      throw UsageError(fmt::format("which command? {} lists them", where));
    // The parser says of an unknown command only that one is missing.
    if (chosen.empty() && argc >= 2 && argv[1][0] != '-')
      throw UsageError(
          fmt::format("there is no command {}; {} lists them", shown(text_field(argv[1])), where));
    const bool extra = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
    throw UsageError(fmt::format("{} (see {}{})", joined_lines(error.what()), where,
                                 extra ? "; a prompt of several words goes in quotes" : ""));
  }
  return {"", chosen_};
}

}  // namespace unpack::cli

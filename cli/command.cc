#include "command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "unpack/error.h"

namespace unpack::cli {
namespace {

template <class T>
bool parse_whole(std::string_view text, T& value) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return !text.empty() && error == std::errc{} && end == text.data() + text.size();
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t start = 0;;) {
    const std::size_t comma = text.find(',', start);
    std::string_view part =
        text.substr(start, comma == std::string_view::npos ? comma : comma - start);
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    parts.push_back(part);
    if (comma == std::string_view::npos) return parts;
    start = comma + 1;
  }
}

std::string one_line(std::string text) {
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

void parse_value(const std::string&, const std::string& text, std::string& value) { value = text; }

void parse_value(const std::string& option, const std::string& text, int& value) {
  if (!parse_whole(text, value))
    throw UsageError(fmt::format("{} takes a whole number, not '{}'", option, text));
}

void parse_value(const std::string& option, const std::string& text, std::size_t& value) {
  if (!parse_whole(text, value))
    throw UsageError(fmt::format("{} takes a whole number of 0 or more, not '{}'", option, text));
}

void parse_value(const std::string& option, const std::string& text, double& value) {
  if (!parse_whole(text, value) || !std::isfinite(value))
    throw UsageError(fmt::format("{} takes a number, not '{}'", option, text));
}

void parse_value(const std::string& option, const std::string& text, std::vector<TokenId>& value) {
  value.clear();
  for (const std::string_view part : split(text)) {
    TokenId id = 0;
    if (!parse_whole(part, id))
      throw UsageError(
          fmt::format("{} takes token ids such as 3,17,5: '{}' is not one", option, part));
    value.push_back(id);
  }
}

void parse_numbers(const std::string& option, const std::string& text, double* values,
                   std::size_t count) {
  const std::vector<std::string_view> parts = split(text);
  if (parts.size() != count)
    throw UsageError(
        fmt::format("{} takes {} numbers with commas between them, not '{}'", option, count, text));
  for (std::size_t i = 0; i < count; ++i) {
    if (!parse_whole(parts[i], values[i]))
      throw UsageError(fmt::format("{} takes numbers: '{}' is not one", option, parts[i]));
  }
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
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == text) return i;
  }
  throw UsageError(fmt::format("{} takes {}, not '{}'", name, fmt::join(words, ", "), text));
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
    const bool extra = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
    throw UsageError(fmt::format("{} (see {}{})", one_line(error.what()), where,
                                 extra ? "; a prompt of several words goes in quotes" : ""));
  }
  return {"", chosen_};
}

}  // namespace unpack::cli

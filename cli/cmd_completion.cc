// Completion scripts for three shells, made from the option parser: they know what it knows.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "commands.h"

namespace unpack::cli {
namespace {

using Commands = std::vector<App::CommandInfo>;
using OptionInfo = App::OptionInfo;

// What may follow an option.
enum class Kind { nothing, words, model, file, text };

Kind kind_of(const OptionInfo& option) {
  const std::string& type = option.positional ? option.names.front() : option.type;
  const std::string& name = option.names.back();
  if (!option.positional && type.empty()) return Kind::nothing;
  if (!option.words().empty()) return Kind::words;
  if (name == "--model" || name == "--also") return Kind::model;
  for (const char* word : {"FILE", "FOLDER", "PATH", "PROMPTS"}) {
    if (type.find(word) != std::string::npos) return Kind::file;
  }
  return name == "--out" ? Kind::file : Kind::text;
}

// Names of the usable models, one a line, in every shell.
constexpr const char* kListModels =
    "unpack models 2>/dev/null | awk '$2 == \"bundled\" || $2 == \"cache\" { print $1 }'";

// In single quotes of a shell.
std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string command_names(const Commands& commands) {
  std::vector<std::string> names;
  for (const auto& command : commands) names.push_back(command.name);
  return fmt::format("{}", fmt::join(names, " "));
}

bool takes_files(const App::CommandInfo& command) {
  for (const OptionInfo& option : command.options) {
    if (option.positional && kind_of(option) == Kind::file) return true;
  }
  return false;
}

std::string bash(const Commands& commands) {
  std::string text =
      "# bash completion for unpack, made by: unpack completion bash\n"
      "_unpack() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  local command=${COMP_WORDS[1]}\n"
      "  COMPREPLY=()\n";
  text += fmt::format(
      "  if ((COMP_CWORD == 1)); then\n"
      "    mapfile -t COMPREPLY < <(compgen -W '{} --help --version' -- \"$word\")\n"
      "    return\n"
      "  fi\n"
      "  local options='' files='' words='' kind=''\n"
      "  case $command in\n",
      command_names(commands));
  for (const auto& command : commands) {
    text += fmt::format("    {})\n", command.name);
    std::vector<std::string> all;
    std::string cases;
    for (const OptionInfo& option : command.options) {
      if (option.positional) {
        if (const auto words = option.words(); !words.empty())
          text += fmt::format("      files='-W {}'\n", fmt::join(words, " "));
        continue;
      }
      all.insert(all.end(), option.names.begin(), option.names.end());
      const std::string names = fmt::format("{}", fmt::join(option.names, " | "));
      switch (kind_of(option)) {
        case Kind::nothing:
          break;
        case Kind::words:
          cases += fmt::format("        {}) kind=words words='{}' ;;\n", names,
                               fmt::join(option.words(), " "));
          break;
        case Kind::model:
          cases += fmt::format("        {}) kind=model ;;\n", names);
          break;
        case Kind::file:
          cases += fmt::format("        {}) kind=file ;;\n", names);
          break;
        case Kind::text:
          cases += fmt::format("        {}) kind=text ;;\n", names);
          break;
      }
    }
    text += fmt::format("      options='{}'\n", fmt::join(all, " "));
    if (takes_files(command)) text += "      files=yes\n";
    if (!cases.empty()) text += "      case $before in\n" + cases + "      esac\n";
    text += "      ;;\n";
  }
  text += fmt::format(
      "  esac\n"
      "  case $kind in\n"
      "    words) mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\") ;;\n"
      "    model)\n"
      "      compopt -o filenames 2>/dev/null\n"
      "      mapfile -t COMPREPLY < <(compgen -W \"$({})\" -- \"$word\"; compgen -d -- \"$word\")\n"
      "      ;;\n"
      "    file)\n"
      "      compopt -o filenames 2>/dev/null\n"
      "      mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
      "      ;;\n"
      "    text) ;;\n"
      "    *)\n"
      "      if [[ $word == -* ]]; then\n"
      "        mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$word\")\n"
      "      elif [[ $files == yes ]]; then\n"
      "        compopt -o filenames 2>/dev/null\n"
      "        mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
      "      elif [[ $files == -W* ]]; then\n"
      "        mapfile -t COMPREPLY < <(compgen -W \"${{files#-W }}\" -- \"$word\")\n"
      "      fi\n"
      "      ;;\n"
      "  esac\n"
      "}}\n"
      "complete -F _unpack unpack\n",
      kListModels);
  return text;
}

// Within [..] and :..: of zsh's _arguments.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_action(const OptionInfo& option) {
  switch (kind_of(option)) {
    case Kind::words:
      return fmt::format("({})", fmt::join(option.words(), " "));
    case Kind::model:
      return "_unpack_models";
    case Kind::file:
      return "_files";
    default:
      return "()";  // a text of the user's own; an empty action would hide the options
  }
}

std::string zsh(const Commands& commands) {
  std::string text = fmt::format(
      "#compdef unpack\n"
      "# zsh completion for unpack, made by: unpack completion zsh\n"
      "_unpack_models() {{\n"
      "  local -a names\n"
      "  names=(${{(f)\"$({})\"}})\n"
      "  _alternative \"models:model:($names)\" 'folders:folder:_files -/'\n"
      "}}\n"
      "_unpack() {{\n"
      "  if ((CURRENT == 2)); then\n"
      "    local -a commands\n"
      "    commands=(\n",
      kListModels);
  for (const auto& command : commands)
    text += fmt::format("      {}\n", shell_quoted(zsh_text(command.name) + ":" + command.summary));
  text +=
      "    )\n"
      "    _describe command commands\n"
      "    _arguments '--help[Print the commands]' '--version[Print the version]'\n"
      "    return\n"
      "  fi\n"
      "  local command=$words[2]\n"
      "  words=(\"${(@)words[2,-1]}\")\n"
      "  ((CURRENT--))\n"
      "  case $command in\n";
  for (const auto& command : commands) {
    text += fmt::format("    {})\n      _arguments", command.name);
    int place = 0;
    for (const OptionInfo& option : command.options) {
      if (option.positional) {
        const std::string where = option.list ? "*" : std::to_string(++place);
        text +=
            " \\\n        " + shell_quoted(fmt::format("{}:{}:{}", where, zsh_text(option.names[0]),
                                                       zsh_action(option)));
        continue;
      }
      for (const std::string& name : option.names) {
        std::string spec =
            fmt::format("{}{}[{}]", option.list ? "*" : "", name, zsh_text(option.help));
        if (kind_of(option) != Kind::nothing)
          spec += fmt::format(":{}:{}", zsh_text(option.type), zsh_action(option));
        text += " \\\n        " + shell_quoted(spec);
      }
    }
    text += "\n      ;;\n";
  }
  return text +
         "  esac\n"
         "}\n"
         "# Found along fpath, the file itself is the function; read by `source`, it names it.\n"
         "if [ \"$funcstack[1]\" = _unpack ]; then\n"
         "  _unpack \"$@\"\n"
         "else\n"
         "  compdef _unpack unpack\n"
         "fi\n";
}

std::string fish(const Commands& commands) {
  std::string text = fmt::format(
      "# fish completion for unpack, made by: unpack completion fish\n"
      "complete -c unpack -f\n"
      "set -l commands {}\n"
      "complete -c unpack -n \"not __fish_seen_subcommand_from $commands\" -l help -d 'Print the "
      "commands'\n"
      "complete -c unpack -n \"not __fish_seen_subcommand_from $commands\" -l version -d 'Print "
      "the version'\n",
      command_names(commands));
  for (const auto& command : commands)
    text += fmt::format(
        "complete -c unpack -n \"not __fish_seen_subcommand_from $commands\" -a {} -d {}\n",
        command.name, shell_quoted(command.summary));
  for (const auto& command : commands) {
    const std::string when =
        fmt::format("complete -c unpack -n '__fish_seen_subcommand_from {}'", command.name);
    for (const OptionInfo& option : command.options) {
      std::string line = when;
      if (!option.positional) {
        for (const std::string& name : option.names)
          line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      switch (kind_of(option)) {
        case Kind::nothing:
          break;
        case Kind::words:
          line += fmt::format(" -x -a {}",
                              shell_quoted(fmt::format("{}", fmt::join(option.words(), " "))));
          break;
        case Kind::model:
          line += fmt::format(" -x -a {}", shell_quoted(fmt::format("({})", kListModels)));
          break;
        case Kind::file:
          line += option.positional ? " -F" : " -r -F";
          break;
        case Kind::text:
          if (option.positional) continue;
          line += " -x";
          break;
      }
      text += line + " -d " + shell_quoted(option.help) + "\n";
    }
  }
  return text;
}

}  // namespace

void add_completion(App& app, Context&) {
  struct Arguments {
    std::string shell;
  };
  const auto args = std::make_shared<Arguments>();
  Command command =
      app.add("completion", "A completion script for bash, zsh or fish",
              "unpack completion bash > ~/.local/share/bash-completion/completions/unpack");
  command.word_argument("SHELL", "bash, zsh or fish", args->shell, {"bash", "zsh", "fish"});
  command.run([args, &app] {
    const Commands commands = app.describe();
    print(args->shell == "bash"  ? bash(commands)
          : args->shell == "zsh" ? zsh(commands)
                                 : fish(commands));
  });
}

}  // namespace unpack::cli

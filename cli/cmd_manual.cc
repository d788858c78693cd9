// The manual page, made from the option parser.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "commands.h"
#include "unpack/about.h"

namespace unpack::cli {
namespace {

// Plain text for troff: a hyphen that can be copied, no line that looks like a request.
std::string plain(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) {
      out += std::string("\\&") + c;
    } else {
      out += c;
    }
  }
  return out;
}

std::string bold(const std::string& text) { return "\\fB" + plain(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + plain(text) + "\\fR"; }

std::string option_lines(const App::OptionInfo& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.names)
    names.push_back(option.positional ? italic(name) : bold(name));
  std::string head = fmt::format("{}", fmt::join(names, ", "));
  if (!option.positional && !option.type.empty()) head += " " + italic(option.type);
  return fmt::format(".TP\n{}\n{}\n", head, plain(option.help.empty() ? " " : option.help));
}

std::string manual(const App& app) {
  std::string text = fmt::format(
      ".\\\" Made by: unpack manual\n"
      ".TH UNPACK 1 \"\" \"unpack {}\" \"User Commands\"\n"
      ".SH NAME\n"
      "unpack \\- exact attribution of a transformer's prediction to tokens, components and paths\n"
      ".SH SYNOPSIS\n"
      ".B unpack\n"
      ".I COMMAND\n"
      "[\\fIoptions\\fR]\n"
      ".br\n"
      ".B unpack\n"
      "[\\fB\\-\\-help\\fR|\\fB\\-\\-version\\fR]\n"
      ".SH DESCRIPTION\n"
      "{}\n"
      ".PP\n"
      "Every head and every MLP of a transformer is a lookup. \\fBunpack\\fR follows credit "
      "backwards\n"
      "through them, from a predicted token to the tokens it came from, and names what it passes.\n"
      "Models are folders in Hugging Face format, names of the local Hugging Face cache, or one "
      "of\n"
      "the small models that come with the program. Nothing is downloaded.\n"
      ".SH COMMANDS\n",
      plain(version()), plain(app.summary()));
  for (const App::CommandInfo& command : app.describe()) {
    text += fmt::format(".SS \"unpack {}\"\n{}.\n", plain(command.name), plain(command.summary));
    for (const App::OptionInfo& option : command.options) {
      if (option.positional) text += option_lines(option);
    }
    for (const App::OptionInfo& option : command.options) {
      if (!option.positional) text += option_lines(option);
    }
    const std::size_t at = command.example.find("unpack ");
    if (at != std::string::npos)
      text += fmt::format(".PP\nExample:\n.PP\n.RS\n.nf\n{}\n.fi\n.RE\n",
                          plain(command.example.substr(at)));
  }
  text +=
      ".SH \"EXIT STATUS\"\n"
      "0: done. 1: bad input. 2: bad command line. 3: a fault of the program. 128 and more: "
      "stopped\n"
      "by a signal.\n"
      ".SH ENVIRONMENT\n"
      ".TP\n\\fBUNPACK_MODELS\\fR\nA folder of models, looked into before the bundled ones.\n"
      ".TP\n\\fBUNPACK_DATA\\fR\nThe word lists and templates of the experiments.\n"
      ".TP\n\\fBUNPACK_ONEDNN\\fR\nA oneDNN library to use, \\(lqon\\(rq for small models too, or "
      "\\(lqoff\\(rq for unpack's own "
      "products.\n"
      ".TP\n\\fBUNPACK_CUDA_PLUGIN\\fR\nThe plugin for NVIDIA GPUs.\n"
      ".TP\n\\fBHF_HUB_CACHE\\fR, \\fBHF_HOME\\fR\nWhere the Hugging Face cache is.\n"
      ".TP\n\\fBNO_COLOR\\fR\nNo colours on the terminal.\n"
      ".SH \"SEE ALSO\"\n"
      "\\fBunpack doctor\\fR says what the program found on this machine.\n";
  return text;
}

}  // namespace

void add_manual(App& app, Context&) {
  Command command = app.add("manual", "The manual page, for man", "unpack manual | man -l -");
  command.run([&app] { print(manual(app)); });
}

}  // namespace unpack::cli

#include "context.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "unpack/error.h"

namespace unpack::cli {
namespace {

constexpr const char* kClearLine = "\r\033[K";

// A line on stderr that is redrawn a few times a second, and only for work that takes long enough to wonder.
class ProgressLine {
 public:
  void show(const Progress& progress) {
    const auto now = std::chrono::steady_clock::now();
    if (now - begin_ < std::chrono::milliseconds(500) || now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    const std::string line = progress.total > 0 ? fmt::format("{}{}: {:.0f} of {:.0f} ({:.0f}%)", kClearLine, progress.what, progress.done, progress.total,
                                                              100 * progress.done / progress.total)
                                                : fmt::format("{}{}: {:.0f}", kClearLine, progress.what, progress.done);
    std::fwrite(line.data(), 1, line.size(), stderr);
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now(), last_ = begin_;
};

int terminal_width() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40) return std::min<int>(size.ws_col, 160);
  return 100;
}

bool unicode_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value && *value) return std::strcmp(value, "C") != 0 && std::strcmp(value, "POSIX") != 0;
  }
  return true;  // nothing said: today's terminals are UTF-8
}

}  // namespace

RunContext Context::run() const {
  RunContext context;
  context.stop = stop;
  if (isatty(STDERR_FILENO)) context.progress = [line = std::make_shared<ProgressLine>()](const Progress& progress) { line->show(progress); };
  return context;
}

void print(std::string_view text) {
  clear_progress();
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw InputError(fmt::format("cannot write to stdout: {}", std::strerror(errno)));
  }
}

void clear_progress() {
  if (isatty(STDERR_FILENO)) std::fputs(kClearLine, stderr);
}

TerminalStyle terminal_style(Color color) {
  const char* no_color = std::getenv("NO_COLOR");
  TerminalStyle style;
  style.color = color == Color::always || (color == Color::automatic && isatty(STDOUT_FILENO) && !(no_color && *no_color));
  style.width = terminal_width();
  style.unicode = unicode_locale();
  return style;
}

void add_color(Command& command, Color& color) {
  command.choice("--color", "Colours: auto means on a terminal, unless NO_COLOR is set", color,
                 {{"auto", Color::automatic}, {"always", Color::always}, {"never", Color::never}});
}

void Outputs::add_json(Command& command) { add(command, "--json", "Write the result as JSON"); }

void Outputs::add(Command& command, const std::string& name, const std::string& help) {
  list_.push_back(std::make_unique<Output>(Output{name, std::nullopt}));
  command.option(name, "FILE|-", help + " (- for stdout)", list_.back()->file);
}

void Outputs::add_file(Command& command, const std::string& name, const std::string& help) {
  list_.push_back(std::make_unique<Output>(Output{name, std::nullopt}));
  command.option(name, "FILE", help, list_.back()->file);
}

const std::optional<std::string>* Outputs::find(const std::string& name) const {
  for (const auto& output : list_) {
    if (output->name == name) return &output->file;
  }
  return nullptr;
}

bool Outputs::any() const {
  for (const auto& output : list_) {
    if (output->file) return true;
  }
  return false;
}

void Outputs::check() const {
  int to_stdout = 0;
  for (const auto& output : list_) {
    if (output->file && output->file->empty()) throw UsageError(fmt::format("{} takes the name of a file, or - for stdout", output->name));
    to_stdout += output->file == "-";
  }
  if (to_stdout > 1) throw UsageError("only one output can go to stdout: name a file for the others");
}

void Outputs::write_text(const std::string& file, const std::string& text) {
  if (file == "-") {
    print(text.ends_with('\n') ? text : text + "\n");
  } else {
    write_file(file, text);
  }
}

}  // namespace unpack::cli

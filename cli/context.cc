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

// 75 -> "1 min 15 s"
std::string duration_text(double seconds) {
  const long whole = seconds + 0.5;
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

// A line on stderr that is redrawn a few times a second, and only for work that takes long enough
// to wonder. In a log file: a line of its own, rarely.
class ProgressLine {
 public:
  explicit ProgressLine(bool terminal) : terminal_(terminal) {}

  void show(const Progress& progress) {
    const auto now = Clock::now();
    if (progress.what != what_ || progress.done < first_) {
      what_ = progress.what;
      first_ = progress.done;  // what was there before says nothing about the pace
      begin_ = now;
    }
    const auto pause =
        terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(30000);
    if (now - start_ < std::chrono::milliseconds(500) || now - last_ < pause) return;
    last_ = now;
    const std::string line = (terminal_ ? kClearLine : "") +
                             text(progress, std::chrono::duration<double>(now - begin_).count()) +
                             (terminal_ ? "" : "\n");
    std::fwrite(line.data(), 1, line.size(), stderr);
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::string text(const Progress& p, double seconds) const {
    if (p.total <= 0) return fmt::format("{}: {:.0f}", p.what, p.done);
    constexpr int kWidth = 24;
    const int filled = kWidth * std::min(1.0, p.done / p.total);
    std::string line =
        fmt::format("{} [{}{}] {:.0f} of {:.0f} ({:.0f}%)", p.what, std::string(filled, '#'),
                    std::string(kWidth - filled, '.'), p.done, p.total, 100 * p.done / p.total);
    const double rate = seconds > 0 ? (p.done - first_) / seconds : 0;
    if (seconds > 1 && rate > 0)
      line += fmt::format(", {:.{}f}/s, {} left", rate, rate < 10 ? 1 : 0,
                          duration_text((p.total - p.done) / rate));
    return line;
  }

  bool terminal_;
  std::string what_;
  double first_ = 0;
  Clock::time_point start_ = Clock::now(), begin_ = start_, last_ = start_;
};

int terminal_width() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40)
    return std::min<int>(size.ws_col, 160);
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
  listening = true;
  if (isatty(STDERR_FILENO))
    context.progress = [line = std::make_shared<ProgressLine>(true)](const Progress& progress) {
      line->show(progress);
    };
  return context;
}

RunContext Context::run_logged() const {
  RunContext context = run();
  if (!context.progress)
    context.progress = [line = std::make_shared<ProgressLine>(false)](const Progress& progress) {
      line->show(progress);
    };
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

void warn(std::string_view what) {
  const std::string line = std::string("unpack: ") + Error(std::string(what)).what() + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

TerminalStyle terminal_style(Color color) {
  const char* no_color = std::getenv("NO_COLOR");
  TerminalStyle style;
  style.color = color == Color::always ||
                (color == Color::automatic && isatty(STDOUT_FILENO) && !(no_color && *no_color));
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
    if (output->file && output->file->empty())
      throw UsageError(fmt::format("{} takes the name of a file, or - for stdout", output->name));
    to_stdout += output->file == "-";
    if (output->file && *output->file != "-") check_writable(*output->file);
  }
  if (to_stdout > 1)
    throw UsageError("only one output can go to stdout: name a file for the others");
}

void Outputs::write_text(const std::string& file, const std::string& text) {
  if (file == "-") {
    print(text.ends_with('\n') ? text : text + "\n");
  } else {
    write_file(file, text);
  }
}

}  // namespace unpack::cli

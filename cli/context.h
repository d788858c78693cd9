// What every command shares: the ways out (stdout, files, exit status) and the way to be stopped.
#pragma once

#include <atomic>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "command.h"
#include "unpack/error.h"
#include "unpack/report.h"
#include "unpack/run_context.h"

namespace unpack::cli {

enum class Color { automatic, always, never };

struct Context {
  std::stop_token stop;
  // Somebody looks at `stop`: until then a signal ends the process at once.
  mutable std::atomic<bool> listening = false;
  int status = 0;  // what a command that ran to its end gives as exit status

  // Stops on the token and shows progress on stderr where that is a terminal.
  RunContext run() const;
  // The same for work of hours: elsewhere than on a terminal a line every half minute.
  RunContext run_logged() const;
};

// Work that was stopped on request and says itself what is left of it.
class Interrupted : public Error {
 public:
  using Error::Error;
};

// Writes to stdout now; InputError when that fails (full disk, closed pipe).
void print(std::string_view text);
void clear_progress();
void warn(std::string_view what);  // one line on stderr, whatever is in it

// The terminal at stdout: width, colours unless NO_COLOR is set, block characters unless the locale
// rules them out.
TerminalStyle terminal_style(Color color);
void add_color(Command& command, Color& color);

// What an output option names: a file, or "-" for stdout.
class Outputs {
 public:
  void add_json(Command& command);
  void add(Command& command, const std::string& name,
           const std::string& help);  // a file, or - for stdout
  void add_file(Command& command, const std::string& name,
                const std::string& help);  // a file alone, where the suffix decides

  const std::optional<std::string>* find(const std::string& name) const;
  bool any() const;
  // At most one may go to stdout, and every file can be written: found out before any work, not
  // behind it.
  void check() const;
  // Calls `make` and writes its text where the option was given.
  template <class Make>
  void write(const std::string& name, Make make) const {
    if (const std::optional<std::string>* file = find(name); file && *file)
      write_text(**file, make());
  }

 private:
  struct Output {
    std::string name;
    std::optional<std::string> file;
  };
  static void write_text(const std::string& file, const std::string& text);
  std::vector<std::unique_ptr<Output>> list_;  // the parser keeps references to the entries
};

}  // namespace unpack::cli

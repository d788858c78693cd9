// The command line: parse, run one command, turn what was thrown into one line and an exit status.
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <tuple>

#include "allocator.h"
#include "commands.h"
#include "unpack/error.h"
#include "version.h"

namespace {

using namespace unpack;

enum Status { kDone = 0, kBadInput = 1, kBadCommandLine = 2, kOurFault = 3, kSignalled = 128 };

int fail(int status, const std::string& what) {
  cli::clear_progress();
  cli::warn(what);
  return status;
}

// The first SIGINT or SIGTERM asks the work to stop at a point where nothing is half done; the
// second ends the process. So does the first one where nobody listens: while arguments, stdin or a
// model are read, and where the work has not answered for a while (what is written is whole at any
// moment). A thread of its own waits for them: a signal handler could not use the stop source
// safely.
class SignalWatch {
 public:
  SignalWatch() {
    std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is reported by the write that meets it
    std::signal(SIGXFSZ, SIG_IGN);  // and so is a limit on the size of files
    struct sigaction fault = {};
    fault.sa_handler = lost_page;
    sigaction(SIGBUS, &fault, nullptr);
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGALRM);  // the grace is over
  }

  // Throws InputError where no thread can be started.
  void start(const std::atomic<bool>& listening) {
    listening_ = &listening;
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);  // inherited by every thread that starts later
    try {
      std::thread([this] { watch(); }).detach();
    } catch (const std::system_error& error) {
      pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
      throw InputError(
          fmt::format("cannot start a thread ({}): raise the limit on processes or "
                      "memory (ulimit -u, ulimit -v)",
                      error.code().message()));
    }
  }
  std::stop_token token() const { return source_.get_token(); }
  int signal() const { return signal_; }

 private:
  static constexpr unsigned kGraceSeconds = 10;

  void watch() {
    for (int signal = 0; sigwait(&set_, &signal) == 0;) {
      if (signal_ != 0 || !*listening_) {
        cli::warn("interrupted, nothing was written");
        _exit(kSignalled + (signal == SIGALRM ? signal_.load() : signal));
      }
      signal_ = signal;
      source_.request_stop();
      alarm(kGraceSeconds);
    }
  }

  // Weight files are mapped: one that is cut short while we read it has no page to give.
  static void lost_page(int) {
    constexpr std::string_view kLine =
        "unpack: a model file became shorter while it was read: put it back, or use --no-mmap\n";
    std::ignore = ::write(STDERR_FILENO, kLine.data(), kLine.size());
    _exit(kBadInput);
  }

  sigset_t set_;
  std::stop_source source_;
  std::atomic<int> signal_ = 0;
  const std::atomic<bool>* listening_ = nullptr;
};

int run(int argc, char** argv, SignalWatch& signals, cli::Context& context) {
  try {
    signals.start(context.listening);
    context.stop = signals.token();
    cli::App app(cli::version_text);
    cli::add_commands(app, context);
    const cli::App::Parsed parsed = app.parse(argc, argv);
    if (parsed.action) {
      parsed.action();
    } else {
      cli::print(parsed.text);
    }
    return context.status;
  } catch (const Cancelled&) {
    return fail(kSignalled + (signals.signal() ? signals.signal() : SIGINT),
                "interrupted, nothing was written");
  } catch (const cli::Interrupted& error) {
    return fail(kSignalled + (signals.signal() ? signals.signal() : SIGINT), error.what());
  } catch (const InputError& error) {
    return fail(kBadInput, error.what());
  } catch (const UsageError& error) {
    return fail(kBadCommandLine, error.what());
  } catch (const std::bad_alloc&) {
    return fail(kBadInput, "out of memory: try a shorter prompt or a smaller model");
  } catch (const std::length_error&) {
    return fail(kBadInput, "out of memory: try a shorter prompt or a smaller model");
  } catch (const std::system_error& error) {
    return fail(kBadInput, error.what());  // the system said no
  } catch (const std::exception& error) {
    return fail(kOurFault, fmt::format("internal error, please report it: {}", error.what()));
  } catch (...) {
    return fail(kOurFault, "internal error, please report it");
  }
}

constexpr std::string_view kNoMemory = "unpack: out of memory\n";

// Memory that runs out where nothing may be thrown, in code of others.
[[noreturn]] void last_words() {
  if (const std::exception_ptr error = std::current_exception()) {
    try {
      std::rethrow_exception(error);
    } catch (const std::bad_alloc&) {
      std::ignore = ::write(STDERR_FILENO, kNoMemory.data(), kNoMemory.size());
      _exit(kBadInput);
    } catch (...) {  // NOLINT(bugprone-empty-catch)
    }
  }
  std::abort();
}

}  // namespace

int main(int argc, char** argv) {
  std::set_terminate(last_words);
  // Buffers of one step serve the next. Given back to the kernel each time, clearing them again
  // costs a sixth of a trace.
  cli::keep_freed_memory(512);
  // Never destroyed: the thread that watches for signals outlives main.
  alignas(SignalWatch) static std::byte watch[sizeof(SignalWatch)];
  alignas(cli::Context) static std::byte shared[sizeof(cli::Context)];
  try {
    auto* signals = new (watch) SignalWatch;
    auto* context = new (shared) cli::Context;
    const int status = run(argc, argv, *signals, *context);
    std::fflush(stderr);
    return status;
  } catch (...) {  // not even the stop source could be made
    std::ignore = ::write(STDERR_FILENO, kNoMemory.data(), kNoMemory.size());
    return kBadInput;
  }
}

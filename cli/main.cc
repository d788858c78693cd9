// The command line: parse, run one command, turn what was thrown into one line and an exit status.
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <new>
#include <stop_token>
#include <string>
#include <thread>

#include "commands.h"
#include "unpack/error.h"
#include "version.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace {

using namespace unpack;

enum Status { kDone = 0, kBadInput = 1, kBadCommandLine = 2, kOurFault = 3, kSignalled = 128 };

int fail(int status, const std::string& what) {
  cli::clear_progress();
  const std::string line = fmt::format("unpack: {}\n", what);
  std::fwrite(line.data(), 1, line.size(), stderr);
  return status;
}

// The first SIGINT or SIGTERM asks the work to stop at a point where nothing is half done; the
// second ends the process. A thread of its own waits for them: a signal handler could not use the
// stop source safely.
class SignalWatch {
 public:
  SignalWatch() {
    std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is reported by the write that meets it
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);  // inherited by every thread that starts later
    std::thread([this, set] {
      for (;;) {
        int signal = 0;
        if (sigwait(&set, &signal) != 0) return;
        if (signal_.exchange(signal) != 0) _exit(kSignalled + signal);
        source_.request_stop();
      }
    }).detach();
  }
  std::stop_token token() const { return source_.get_token(); }
  int signal() const { return signal_; }

 private:
  std::stop_source source_;
  std::atomic<int> signal_ = 0;
};

int run(int argc, char** argv, SignalWatch& signals) {
  try {
    cli::Context context;
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
    return fail(kOurFault, "out of memory: try a shorter prompt or a smaller model");
  } catch (const std::exception& error) {
    return fail(kOurFault, fmt::format("internal error, please report it: {}", error.what()));
  }
}

}  // namespace

int main(int argc, char** argv) {
#ifdef __GLIBC__
  // Buffers of one step serve the next. Given back to the kernel each time, clearing them again
  // costs a sixth of a trace.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
#endif
  // Leaked on purpose: its thread outlives main.
  auto* signals = new SignalWatch;
  const int status = run(argc, argv, *signals);
  std::fflush(stderr);
  return status;
}

// Lets the n-th call of a kind fail, in a program that is started with this library preloaded:
//   LD_PRELOAD=libfaults.so UNPACK_FAULT=write:3 unpack ...
// Kinds: memory (malloc, calloc, realloc, aligned_alloc, posix_memalign), write (write, fwrite's
// own writes), sync (fsync, fdatasync), rename, map (mmap of a file), thread (pthread_create).
// Without a number the calls are counted and their number is written to the file that
// UNPACK_FAULT_COUNT names; UNPACK_FAULT_WHERE names a file for the calls that led to the one that
// failed.
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

enum Kind { kMemory, kWrite, kSync, kRename, kMap, kThread, kKinds };
constexpr const char* kNames[kKinds] = {"memory", "write", "sync", "rename", "map", "thread"};

std::atomic<long> counts[kKinds];
long failing[kKinds];  // 0: none
std::atomic<bool> ready{false};
const char* where = nullptr;
bool persistent = false;  // that call and all that follow: a full disk, not a hiccup

// Before main (and while the loader works) nothing fails: no program could say anything.
__attribute__((constructor)) void begin() {
  const char* wanted = std::getenv("UNPACK_FAULT");
  for (int kind = 0; wanted != nullptr && kind < kKinds; ++kind) {
    const std::size_t size = std::strlen(kNames[kind]);
    if (std::strncmp(wanted, kNames[kind], size) == 0 && wanted[size] == ':')
      failing[kind] = std::atol(wanted + size + 1);
  }
  where = std::getenv("UNPACK_FAULT_WHERE");
  void* frame = nullptr;
  if (where != nullptr) backtrace(&frame, 1);  // loads what it needs before anything can fail
  persistent = std::getenv("UNPACK_FAULT_PERSISTENT") != nullptr;
}

using Main = int (*)(int, char**, char**);
Main program_main = nullptr;

int counted_main(int argc, char** argv, char** environment) {
  ready = true;
  return program_main(argc, argv, environment);
}

__attribute__((destructor)) void end() {
  ready = false;
  const char* file = std::getenv("UNPACK_FAULT_COUNT");
  if (file == nullptr) return;
  char text[256];
  int size = 0;
  for (int kind = 0; kind < kKinds; ++kind)
    size += std::snprintf(text + size, sizeof text - static_cast<std::size_t>(size), "%s %ld\n",
                          kNames[kind], counts[kind].load());
  const int out = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (out < 0) return;
  syscall(SYS_write, out, text, static_cast<std::size_t>(size));
  close(out);
}

void say_where() {
  constexpr int kFrames = 60;
  void* frames[kFrames];
  const int out = open(where, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (out < 0) return;
  backtrace_symbols_fd(frames, backtrace(frames, kFrames), out);
  close(out);
}

bool fails(Kind kind, int error) {
  if (!ready) return false;
  const long n = ++counts[kind];
  if (failing[kind] == 0 || (persistent ? n < failing[kind] : n != failing[kind])) return false;
  if (where != nullptr) say_where();
  errno = error;
  return true;
}

template <class Function>
Function next(const char* name) {
  void* symbol = dlsym(RTLD_NEXT, name);
  Function function;
  std::memcpy(&function, &symbol, sizeof function);
  return function;
}

}  // namespace

extern "C" {

int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(),
                      void (*loader_fini)(), void* stack_end) {
  program_main = main;
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  return next<Start>("__libc_start_main")(counted_main, argc, argv, init, fini, loader_fini,
                                          stack_end);
}

void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t size) { return fails(kMemory, ENOMEM) ? nullptr : __libc_malloc(size); }
void* calloc(std::size_t n, std::size_t size) {
  return fails(kMemory, ENOMEM) ? nullptr : __libc_calloc(n, size);
}
void* realloc(void* old, std::size_t size) {
  return size > 0 && fails(kMemory, ENOMEM) ? nullptr : __libc_realloc(old, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  return fails(kMemory, ENOMEM) ? nullptr : __libc_memalign(alignment, size);
}
int posix_memalign(void** out, std::size_t alignment, std::size_t size) {
  if (fails(kMemory, ENOMEM)) return ENOMEM;
  *out = __libc_memalign(alignment, size);
  return *out == nullptr ? ENOMEM : 0;
}

ssize_t write(int file, const void* data, std::size_t size) {
  // What the program says at its end is not what is tested.
  if (file != STDERR_FILENO && fails(kWrite, ENOSPC)) return -1;
  return syscall(SYS_write, file, data, size);
}
int fsync(int file) { return fails(kSync, EIO) ? -1 : static_cast<int>(syscall(SYS_fsync, file)); }
int fdatasync(int file) {
  return fails(kSync, EIO) ? -1 : static_cast<int>(syscall(SYS_fdatasync, file));
}
int rename(const char* from, const char* to) {
  return fails(kRename, EACCES) ? -1 : static_cast<int>(syscall(SYS_rename, from, to));
}
void* mmap(void* at, std::size_t size, int protection, int flags, int file, off_t offset) {
  if (file >= 0 && fails(kMap, ENOMEM)) return MAP_FAILED;
  static const auto real = next<void* (*)(void*, std::size_t, int, int, int, off_t)>("mmap");
  return real(at, size, protection, flags, file, offset);
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*),
                   void* argument) {
  if (fails(kThread, EAGAIN)) return EAGAIN;
  static const auto real =
      next<int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
  return real(thread, attributes, work, argument);
}

}  // extern "C"

#include "base/system.h"

#include <algorithm>
#include <fstream>
#include <thread>

#if defined(_WIN32)
#include <io.h>
#include <windows.h>
#else
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__GLIBC__)
#include <gnu/libc-version.h>
#include <malloc.h>
#endif
#if defined(__APPLE__)
#include <mach-o/dyld.h>
#include <sys/sysctl.h>
#endif

namespace unpack::base {
namespace fs = std::filesystem;
namespace {

// What stands behind the first line "KEY<separator>" of a file; empty where there is none.
[[maybe_unused]] std::string line_value(const char* file, const std::string& key, char separator) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t at = line.find(separator);
    if (at == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t\"", at + 1);
    const std::size_t end = line.find_last_not_of(" \t\"");
    return begin == std::string::npos ? "" : line.substr(begin, end + 1 - begin);
  }
  return {};
}

// A field of a file of /proc that counts KiB, in bytes; 0 where it is not there.
[[maybe_unused]] std::uint64_t counted_kib(const char* file, const std::string& key) {
  const std::string text = line_value(file, key, ':');
  return text.empty() ? 0 : std::stoull(text) * 1024;
}

#if defined(__APPLE__)
std::string sysctl_text(const char* name) {
  char text[256] = {};
  std::size_t size = sizeof(text) - 1;
  return sysctlbyname(name, text, &size, nullptr, 0) == 0 ? text : "";
}
#endif

}  // namespace

fs::path program_path() {
#if defined(__linux__)
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error);
#elif defined(__APPLE__)
  char path[4096];
  std::uint32_t size = sizeof(path);
  std::error_code error;
  return _NSGetExecutablePath(path, &size) == 0 ? fs::canonical(path, error) : fs::path();
#elif defined(_WIN32)
  wchar_t path[4096];
  const DWORD size = GetModuleFileNameW(nullptr, path, 4096);
  return fs::path(path, path + size);
#else
  return {};
#endif
}

fs::path own_folder() {
#if defined(_WIN32)
  return program_path().parent_path();
#else
  Dl_info info{};
  std::error_code error;
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr)
    return {};
  // A program is named as it was called, perhaps by a word that was looked up along PATH: only what
  // is another file than the program is a module.
  const fs::path named = fs::weakly_canonical(info.dli_fname, error);
  const fs::path program = program_path();
  const bool module = !error && fs::exists(named, error) && !fs::equivalent(named, program, error);
  return module ? named.parent_path() : program.parent_path();
#endif
}

int allowed_processors() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

SystemMemory system_memory() {
  SystemMemory out;
#if defined(__linux__)
  out.total = counted_kib("/proc/meminfo", "MemTotal");
  out.available = counted_kib("/proc/meminfo", "MemAvailable");
#elif defined(__APPLE__)
  std::size_t size = sizeof(out.total);
  if (sysctlbyname("hw.memsize", &out.total, &size, nullptr, 0) != 0) out.total = 0;
#elif defined(_WIN32)
  MEMORYSTATUSEX status{};
  status.dwLength = sizeof(status);
  if (GlobalMemoryStatusEx(&status)) {
    out.total = status.ullTotalPhys;
    out.available = status.ullAvailPhys;
  }
#endif
  return out;
}

std::string processor_name() {
#if defined(__linux__)
  return line_value("/proc/cpuinfo", "model name", ':');
#elif defined(__APPLE__)
  return sysctl_text("machdep.cpu.brand_string");
#else
  return {};
#endif
}

void* map_memory(std::size_t bytes) {
#if defined(_WIN32)
  return VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
#else
  void* place = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) return nullptr;
#if defined(__linux__)
  madvise(place, bytes, MADV_HUGEPAGE);
#endif
  return place;
#endif
}

void unmap_memory(void* place, std::size_t bytes) {
  if (place == nullptr) return;
#if defined(_WIN32)
  VirtualFree(place, 0, MEM_RELEASE);
#else
  munmap(place, bytes);
#endif
}

void will_read(const void* place, std::size_t bytes) {
#if defined(__linux__)
#if !defined(MADV_POPULATE_READ)
  constexpr int MADV_POPULATE_READ = 22;  // Linux 5.14; others refuse it, which does no harm
#endif
  constexpr std::uintptr_t kPage = 4096;
  const auto begin = reinterpret_cast<std::uintptr_t>(place) & ~(kPage - 1);
  const auto end = (reinterpret_cast<std::uintptr_t>(place) + bytes + kPage - 1) & ~(kPage - 1);
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_READ);
#endif
}

bool room_for(std::size_t bytes) {
  void* place = map_memory(bytes);
  unmap_memory(place, bytes);
  return place != nullptr;
}

ProcessMemory process_memory() {
  ProcessMemory out;
#if defined(__linux__)
  out.now = counted_kib("/proc/self/status", "VmRSS");
  out.peak = counted_kib("/proc/self/status", "VmHWM");
#endif
#if !defined(_WIN32)
  if (out.peak == 0) {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
#if defined(__APPLE__)
    constexpr std::uint64_t kUnit = 1;
#else
    constexpr std::uint64_t kUnit = 1024;
#endif
    out.peak = usage.ru_maxrss * kUnit;
  }
#endif
  if (out.now == 0) out.now = out.peak;
  return out;
}

void forget_peak_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
#if defined(__linux__)
  std::ofstream("/proc/self/clear_refs") << '5';
#endif
}

int sync_data(int descriptor) {
#if defined(_WIN32)
  return _commit(descriptor);
#elif defined(__linux__)
  return fdatasync(descriptor);
#else
  return fsync(descriptor);
#endif
}

std::string system_name() {
#if defined(_WIN32)
  return "Windows";
#else
  utsname names{};
  std::string text;
  if (uname(&names) == 0)
    text = std::string(names.sysname) + " " + names.release + ", " + names.machine;
#if defined(__linux__)
  const std::string distribution = line_value("/etc/os-release", "PRETTY_NAME", '=');
  if (!distribution.empty()) text = distribution + ", " + text;
#if defined(__GLIBC__)
  text += std::string(", glibc ") + gnu_get_libc_version();
#endif
#endif
  return text;
#endif
}

std::shared_ptr<SharedLibrary> SharedLibrary::open(const std::string& name, bool keep,
                                                   std::string& why) {
#if defined(_WIN32)
  void* handle = LoadLibraryA(name.c_str());
  if (handle == nullptr) why = name + " cannot be loaded";
#else
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | (keep ? RTLD_NODELETE : 0));
  if (handle == nullptr) {
    const char* text = dlerror();
    why = text != nullptr ? text : name + " cannot be loaded";
  }
#endif
  if (handle == nullptr) return nullptr;
  return std::shared_ptr<SharedLibrary>(new SharedLibrary(handle));
}

SharedLibrary::~SharedLibrary() {
#if !defined(_WIN32)
  dlclose(handle_);
#endif
}

void* SharedLibrary::symbol(const char* name) const {
#if defined(_WIN32)
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(handle_), name));
#else
  return dlsym(handle_, name);
#endif
}

std::string SharedLibrary::path_of(const void* symbol) const {
#if !defined(_WIN32)
  Dl_info info{};
  if (dladdr(symbol, &info) != 0 && info.dli_fname != nullptr) return info.dli_fname;
#endif
  return {};
}

}  // namespace unpack::base

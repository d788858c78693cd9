// What only the operating system knows: where this program lies, what it may use, how a library is
// opened. The one file of the engine that asks Linux, macOS or Windows by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace unpack::base {

// The running program, with links followed; empty where the system does not say.
std::filesystem::path program_path();
// The folder of the file that holds this code: the program's, or that of a Python module.
std::filesystem::path own_folder();

int allowed_processors();  // those this process may run on, at least 1

struct SystemMemory {
  std::uint64_t total = 0;      // bytes; 0 where the system does not say
  std::uint64_t available = 0;  // what can be taken without swapping
};
SystemMemory system_memory();
// Zeroed memory apart from the heap, in large pages where the system has them; null where there is
// no room for so much.
void* map_memory(std::size_t bytes);
void unmap_memory(void* place, std::size_t bytes);
// Pages of a mapped file that are about to be read, all at once.
void will_read(const void* place, std::size_t bytes);
// Whether so many bytes could be mapped just now. An allocation does not tell: the heap may keep
// them when they are given back.
bool room_for(std::size_t bytes);

struct ProcessMemory {  // bytes that this process holds in memory; the peak where only that is
                        // known
  std::uint64_t now = 0;
  std::uint64_t peak = 0;
};
ProcessMemory process_memory();
// Gives back what the allocator holds and lets the system count the peak anew; where it will not,
// the peak so far stays.
void forget_peak_memory();

// What was written to an open file is on the disk: 0, or -1 with errno.
int sync_data(int descriptor);

std::string processor_name();  // "AMD EPYC 7763"; empty where the system does not say
std::string system_name();     // "Debian GNU/Linux 12 (bookworm), Linux 6.1.0, x86_64, glibc 2.36"

// A shared library, found as the system finds libraries. Closed with the last copy of the pointer,
// unless `keep` holds it for good.
class SharedLibrary {
 public:
  // Null where it cannot be opened; `why` then says it.
  static std::shared_ptr<SharedLibrary> open(const std::string& name, bool keep, std::string& why);
  ~SharedLibrary();
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;

  // A symbol of the library or of those it depends on; null where there is none.
  void* symbol(const char* name) const;
  std::string path_of(const void* symbol) const;  // the file that holds it

 private:
  explicit SharedLibrary(void* handle) : handle_(handle) {}
  void* handle_;
};

}  // namespace unpack::base

#include "backend/cpu/onednn.h"

#include <cstdlib>
#include <new>
#include <vector>

#include "base/index.h"
#include "base/system.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace unpack::backend {
namespace {

// dnnl_version_t, of which we read the numbers.
struct Version {
  int major, minor, patch;
};

// dnnl_cpu_isa_t: values that releases 2 and 3 share.
enum Isa : int {
  kSse41 = 0x1,
  kAvx = 0x3,
  kAvx2 = 0x7,
  kAvx512 = 0x27,
  kAvx512Vnni = 0x67,
  kAvx512Bf16 = 0xE7,
};

struct Loaded {
  std::shared_ptr<base::SharedLibrary> library;
  OneDnn functions{};
  int (*set_max_isa)(int) = nullptr;
  int (*effective_isa)() = nullptr;
  std::string why;
  bool usable = false;
};

template <typename F>
bool take(const base::SharedLibrary& library, const char* name, F& function) {
  function = reinterpret_cast<F>(library.symbol(name));
  return function != nullptr;
}

std::vector<std::string> names() {
#if defined(_WIN32)
  return {"dnnl.dll"};
#elif defined(__APPLE__)
  return {"libdnnl.3.dylib", "libdnnl.2.dylib"};
#else
  // Debian 13 names the file after the minor release, too.
  std::vector<std::string> out = {"libdnnl.so.3"};
  for (int minor = 15; minor >= 0; --minor) out.push_back("libdnnl.so.3." + std::to_string(minor));
  out.emplace_back("libdnnl.so.2");
  return out;
#endif
}

std::string asked_for() {
  const char* named = std::getenv("UNPACK_ONEDNN");
  return named != nullptr ? named : "";
}

Loaded load() {
  Loaded out;
  std::vector<std::string> candidates = names();
  if (const std::string named = asked_for(); named == "off") {
    out.why = "UNPACK_ONEDNN=off";
    return out;
  } else if (!named.empty() && named != "on") {
    candidates = {named};
  }
  for (const std::string& name : candidates) {
    out.library = base::SharedLibrary::open(name, true, out.why);
    if (out.library) break;
  }
  if (!out.library) return out;
  const base::SharedLibrary& library = *out.library;
  const Version* (*version)() = nullptr;
  OneDnn& f = out.functions;
  if (!take(library, "dnnl_sgemm", f.sgemm) || !take(library, "dnnl_version", version) ||
      !take(library, "dnnl_set_max_cpu_isa", out.set_max_isa) ||
      !take(library, "dnnl_get_effective_cpu_isa", out.effective_isa) ||
      !take(library, "omp_get_max_threads", f.max_threads) ||
      !take(library, "omp_set_num_threads", f.set_threads)) {
    out.why = library.path_of(reinterpret_cast<const void*>(f.sgemm)) +
              " is not oneDNN 2 or 3 built on OpenMP";
    return out;
  }
  const Version* v = version();
  f.version =
      std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch);
  f.file = library.path_of(reinterpret_cast<const void*>(f.sgemm));
  out.usable = v->major == 2 || v->major == 3;
  if (!out.usable) out.why = f.file + " is release " + f.version + ", and 2 or 3 is needed";
  return out;
}

const Loaded& loaded() {
  static const Loaded library = load();
  return library;
}

// Some virtual machines announce AMX but give no tiles (CPUID leaf 0x1D is empty); code for it
// would die. Cap the instruction set there.
bool cap_instruction_set() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool tiles = __get_cpuid_count(0x1D, 0, &a, &b, &c, &d) != 0 && a != 0;
  if (!tiles) loaded().set_max_isa(kAvx512Bf16);
#endif
  return true;
}

// The library writes its kernels at the first product, and where memory runs out meanwhile it ends
// the process. So they are made now, small products of every kind we ask for, after a look whether
// there is room: oneDNN 2.6 took 5.8 MiB of address space for them.
bool make_kernels() {
  constexpr std::size_t kRoom = std::size_t{32} << 20;
  if (!base::room_for(kRoom)) throw std::bad_alloc();
  const OneDnn& library = loaded().functions;
  const int threads = library.max_threads();
  library.set_threads(1);
  constexpr Index kSide = 64;
  const std::vector<float> a(kSide * kSide, 0.0F);
  std::vector<float> c(kSide * kSide, 0.0F);
  bool made = true;
  for (const Index rows : {Index{1}, kSide}) {
    for (const char order : {'N', 'T'}) {
      for (const float beta : {0.0F, 1.0F}) {
        made = made && library.sgemm('N', order, rows, kSide, kSide, 1.0F, a.data(), kSide,
                                     a.data(), kSide, beta, c.data(), kSide) == 0;
      }
    }
  }
  library.set_threads(threads);
  if (!made) throw std::bad_alloc();
  return made;
}

}  // namespace

bool onednn_asked_for() { return !asked_for().empty() && asked_for() != "off"; }

const OneDnn* find_onednn() { return loaded().usable ? &loaded().functions : nullptr; }

std::string onednn_absence() { return loaded().usable ? "" : loaded().why; }

const OneDnn* ready_onednn() {
  const OneDnn* library = find_onednn();
  if (library == nullptr) return nullptr;
  static const bool ready = cap_instruction_set() && make_kernels();
  return ready ? library : nullptr;
}

std::string onednn_instructions() {
  if (ready_onednn() == nullptr) return {};
  switch (loaded().effective_isa()) {
    case kSse41:
      return "sse4.1";
    case kAvx:
      return "avx";
    case kAvx2:
      return "avx2";
    case kAvx512:
      return "avx512";
    case kAvx512Vnni:
      return "avx512 vnni";
    case kAvx512Bf16:
      return "avx512 bf16";
    case 0:
      return "portable";
    default:
      return "newest";
  }
}

}  // namespace unpack::backend

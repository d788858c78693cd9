// What `unpack doctor` looks at, each with the command that mends it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdlib>

#include "backend/cpu/gemm.h"
#include "backend/cpu/onednn.h"
#include "backend/cuda/device.h"
#include "backend/cuda/make_cuda_backend.h"
#include "backend/host/kernels.h"
#include "base/index.h"
#include "base/installation.h"
#include "base/message.h"
#include "base/system.h"
#include "base/thread_pool.h"
#include "unpack/about.h"
#include "unpack/error.h"
#include "unpack/models.h"

namespace unpack {
namespace fs = std::filesystem;
namespace {

double gib(std::uint64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

// The largest error of a product in use, against the same in double, relative to its largest value.
double product_error() {
  constexpr Index kM = 37, kN = 53, kK = 301;  // ends within every tile
  std::vector<float> a(kM * kK), b(kN * kK), c(kM * kN);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = std::sin(static_cast<float>(i));
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = std::cos(static_cast<float>(3 * i));
  backend::sgemm(true, kM, kN, kK, a.data(), kK, b.data(), kK, false, c.data(), kN);
  double error = 0, largest = 0;
  for (std::size_t i = 0; i < c.size(); ++i) {
    double want = 0;
    for (std::size_t p = 0; p < kK; ++p)
      want += static_cast<double>(a[i / kN * kK + p]) * b[i % kN * kK + p];
    error = std::max(error, std::fabs(c[i] - want));
    largest = std::max(largest, std::fabs(want));
  }
  return error / largest;
}

Finding products() {
  constexpr double kLimit = 1e-5;
  Finding out{"products", backend::gemm_details(), "", "", false};
  if (const backend::OneDnn* library = backend::find_onednn()) {
    out.found += ", " + library->file;
  } else {
    out.problem = fmt::format("oneDNN is not in use ({}); our own products are slower",
                              backend::onednn_absence());
    std::error_code error;
    out.remedy = std::getenv("UNPACK_ONEDNN") != nullptr ? "unset UNPACK_ONEDNN"
                 : fs::exists("/usr/bin/apt-get", error)
                     ? "apt-get install libdnnl-dev, which brings the release's own"
                     : "install oneDNN (libdnnl.so.3 or .2) with this system's package manager";
  }
  if (const double error = product_error(); !(error < kLimit)) {
    out.problem = fmt::format("a product is wrong by {:.1e} of its largest value", error);
    out.remedy = "UNPACK_ONEDNN=off uses our own products; please report it";
    out.fatal = true;
  } else {
    out.found += fmt::format("; right to {:.0e}", error);
  }
  return out;
}

Finding gpu() {
  Finding out{"GPU", "", "", "", false};
  const bool driver = backend::cuda::driver_present();
  const std::string plugin = backend::cuda::plugin_path();
  if (!driver) {
    out.found = "no NVIDIA driver, so everything runs on the CPU";
  } else if (plugin.empty()) {
    out.found = "an NVIDIA driver";
    out.problem = "the CUDA plugin is not installed";
    out.remedy = "make install UNPACK_CUDA=ON in the source tree (needs nvcc 12 or later, cuBLAS)";
  } else {
    try {
      backend::cuda::open_gpu(false);
      out.found = fmt::format("{}, plugin {}", backend::cuda::device_name(), plugin);
    } catch (const Error& error) {
      out.found = "plugin " + plugin;
      out.problem = error.what();
      out.remedy =
          "nvidia-smi shows what the driver thinks; UNPACK_CUDA_PLUGIN names another plugin";
    }
  }
  return out;
}

Finding memory() {
  const base::SystemMemory m = base::system_memory();
  Finding out{"memory", "", "", "", false};
  out.found =
      m.total == 0
          ? "the system does not say"
          : fmt::format("{:.1f} GiB", gib(m.total)) +
                (m.available == 0 ? "" : fmt::format(", {:.1f} GiB free", gib(m.available)));
  if (m.available != 0 && gib(m.available) < 0.5) {
    out.problem = "less than half a GiB is free";
    out.remedy = "end other programs, or keep prompts short";
  }
  return out;
}

std::vector<Finding> models() {
  std::vector<std::string> bundled, cached;
  std::vector<Finding> out;
  for (const FoundModel& model : list_models({})) {
    (model.origin == "bundled" ? bundled : cached)
        .push_back(model.problem.empty() ? model.name : model.name + " (cannot be used)");
    if (!model.problem.empty())
      out.push_back({"model", model.name, model.problem, "unpack models lists it again", false});
  }
  Finding found{"bundled models", fmt::format("{}", fmt::join(bundled, ", ")), "", "", false};
  if (bundled.empty()) {
    found.found = "none";
    found.problem = "the models that come with the program are not where it looks";
    found.remedy = "install it again, or set UNPACK_MODELS to their folder";
    found.fatal = cached.empty();
  } else if (const char* own = std::getenv("UNPACK_MODELS"); own != nullptr && *own != '\0') {
    std::error_code error;
    if (!fs::is_directory(own, error)) {
      found.problem = fmt::format("UNPACK_MODELS names {}, which is no folder", base::shown(own));
      found.remedy = "unset UNPACK_MODELS, or let it name a folder of models";
    }
  }
  out.insert(out.begin(), found);
  Finding cache{"Hugging Face cache", "", "", "", false};
  std::vector<std::string> looked;
  for (const fs::path& folder : model_cache_folders()) {
    std::error_code error;
    looked.push_back(folder.string() + (fs::is_directory(folder, error) ? "" : " (not there)"));
  }
  cache.found =
      fmt::format("{}: {}", fmt::join(looked, ", "),
                  cached.empty() ? "no models" : fmt::format("{}", fmt::join(cached, ", ")));
  if (cached.empty()) cache.remedy = "huggingface-cli download openai-community/gpt2 adds one";
  out.insert(out.begin() + 1, cache);
  return out;
}

}  // namespace

std::vector<Finding> diagnose() {
  const About program = about();
  std::vector<Finding> out;
  out.push_back({"program",
                 fmt::format("unpack {} ({}), {}, {}", program.version, program.build_type,
                             program.installed, base::program_path().string()),
                 "", "", false});
  out.push_back({"system", base::system_name(), "", "", false});
  const std::string processor = base::processor_name();
  out.push_back({"processor",
                 fmt::format("{}{} thread{}", processor.empty() ? "" : processor + ", ",
                             base::available_threads(), base::available_threads() == 1 ? "" : "s"),
                 "", "", false});
  std::vector<std::string> levels;
  for (const auto& [name, kernels] : backend::float_kernels()) levels.push_back(name);
  out.push_back({"kernels",
                 fmt::format("{} in use (this processor can run {})", backend::kernel_name(),
                             fmt::join(levels, ", ")),
                 "", "", false});
  out.push_back(products());
  out.push_back(gpu());
  out.push_back(memory());
  for (Finding& finding : models()) out.push_back(std::move(finding));
  return out;
}

}  // namespace unpack

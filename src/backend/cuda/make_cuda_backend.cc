#include "backend/cuda/make_cuda_backend.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/emulated.h"
#include "base/system.h"
#include "unpack/error.h"

namespace unpack::backend::cuda {

namespace {

constexpr const char* kPlugin = "libunpack_cuda.so";

std::shared_ptr<Device> open_plugin(const std::string& path, bool tf32) {
  if (path.empty())
    throw InputError(
        fmt::format("the CUDA plugin {} is not installed (build with -DUNPACK_CUDA=ON)", kPlugin));
  // Loading it brings in all of cuBLAS, which is not worth it to learn that there is no GPU.
  if (!driver_present()) throw InputError("there is no NVIDIA driver on this machine");
  // It stays in memory: the CUDA runtime in it does not like to be unloaded.
  std::string why;
  const std::shared_ptr<base::SharedLibrary> library = base::SharedLibrary::open(path, true, why);
  if (!library) throw InputError(fmt::format("the CUDA plugin cannot be loaded: {}", why));
  const auto table =
      reinterpret_cast<UnpackDeviceTableFunction>(library->symbol(UNPACK_DEVICE_TABLE_SYMBOL));
  if (table == nullptr) throw InputError(fmt::format("{} is not a plugin of unpack", path));
  return Device::open(table(), library, tf32);
}

}  // namespace

bool driver_present() {
  std::error_code error;
  return std::filesystem::exists("/dev/nvidiactl", error) ||
         std::filesystem::exists("/dev/dxg", error);
}

std::shared_ptr<Device> open_gpu(bool tf32) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, bool>, std::weak_ptr<Device>> opened;
  const std::string path = plugin_path();
  std::lock_guard lock(mutex);
  std::weak_ptr<Device>& known = opened[{path, tf32}];
  std::shared_ptr<Device> device = known.lock();
  if (!device) known = device = open_plugin(path, tf32);
  return device;
}

std::string plugin_path() {
  namespace fs = std::filesystem;
  if (const char* named = std::getenv("UNPACK_CUDA_PLUGIN")) return named;
  std::vector<fs::path> folders;
  std::error_code error;
  if (const fs::path own = base::own_folder(); !own.empty()) folders.push_back(own);
  const fs::path program = base::program_path();
  if (!program.empty()) {
    folders.push_back(program.parent_path());
    folders.push_back(program.parent_path().parent_path());  // tests of a build folder
    folders.push_back(program.parent_path().parent_path() /
                      "lib");  // an installation that was moved
  }
  folders.emplace_back(UNPACK_INSTALL_LIBRARIES);
  for (const fs::path& folder : folders) {
    if (fs::exists(folder / kPlugin, error)) return (folder / kPlugin).string();
  }
  return {};
}

std::shared_ptr<Backend> make_cuda_backend(std::shared_ptr<const model::ModelWeights> weights,
                                           const BackendOptions& options) {
  return std::make_shared<CudaBackend>(open_gpu(options.tf32), std::move(weights), options, "cuda");
}

std::shared_ptr<Backend> make_emulated_backend(std::shared_ptr<const model::ModelWeights> weights,
                                               const BackendOptions& options) {
  return std::make_shared<CudaBackend>(Device::open(emulated_table(), nullptr, options.tf32),
                                       std::move(weights), options, "cuda-emulated");
}

std::string device_name() {
  try {
    const UnpackDeviceInfo info = open_gpu(false)->info();
    return fmt::format("{}, {:.0f} GiB", info.name,
                       static_cast<double>(info.memory_total) / (1 << 30));
  } catch (const Error&) {
    return {};
  }
}

}  // namespace unpack::backend::cuda

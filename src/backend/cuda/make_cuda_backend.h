// The CUDA backend through its plugin, which is looked for when it is first asked for.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"

namespace unpack::backend::cuda {

class Device;

// Where libunpack_cuda.so is: $UNPACK_CUDA_PLUGIN, beside the program or the library, or in the
// folder it was installed to. Empty: nowhere.
std::string plugin_path();

bool driver_present();

// The GPU, shared by all that hold it: opening it takes a while. Throws InputError as below.
std::shared_ptr<Device> open_gpu(bool tf32);

// Throws InputError that says why where there is no plugin, no driver, no device or too little
// memory.
std::shared_ptr<Backend> make_cuda_backend(std::shared_ptr<const model::ModelWeights> weights,
                                           const BackendOptions& options);

// The same backend with its kernels run by the CPU; for tests.
std::shared_ptr<Backend> make_emulated_backend(std::shared_ptr<const model::ModelWeights> weights,
                                               const BackendOptions& options);

// "NVIDIA H200, ... GiB", or nothing where no CUDA device can be used.
std::string device_name();

}  // namespace unpack::backend::cuda

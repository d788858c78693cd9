// Writes a folder in Hugging Face format with random weights of a well-known shape, to try sizes
// for which no weights are at hand.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "model/load.h"
#include "model/save.h"
#include "unpack/error.h"

int main(int argc, char** argv) {
  using namespace unpack;
  if (argc < 3) {
    std::fprintf(stderr, "usage: make_random_model SHAPE FOLDER [bf16|f16|f32] [SEED]\nshapes:");
    for (const std::string& name : model::known_shapes()) std::fprintf(stderr, " %s", name.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  const std::string type = argc > 3 ? argv[3] : "bf16";
  const DType dtype = type == "f32" ? DType::f32 : type == "f16" ? DType::f16 : DType::bf16;
  constexpr std::size_t kShard = std::size_t{4} << 30;
  try {
    const std::string config = model::known_shape(argv[1]);
    const model::TensorSet set =
        model::random_tensors(config, argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 1, dtype);
    model::save_folder(config, set.tensors, argv[2], kShard);
  } catch (const Error& e) {
    std::fprintf(stderr, "make_random_model: %s\n", e.what());
    return 1;
  }
  return 0;
}

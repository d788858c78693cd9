#include "model/family.h"

namespace unpack {

extern const Family kGpt2, kGptNeox, kLlama, kMistral, kQwen2, kQwen3;

namespace {
constexpr const Family* kFamilies[] = {&kGpt2, &kGptNeox, &kLlama, &kMistral, &kQwen2, &kQwen3};
}

std::span<const Family* const> families() { return kFamilies; }

}  // namespace unpack

#include "model/family.h"

namespace unpack::model {

extern const Family kGpt2, kGptNeox, kLlama, kMistral, kGranite, kQwen2, kQwen3, kQwen3Moe,
    kSmolLm3, kGemma, kGemma2, kGemma3Text, kGemma3, kOlmo2, kPhi3, kMixtral, kOlmoe, kGptOss;

namespace {
constexpr const Family* kFamilies[] = {&kGpt2,     &kGptNeox, &kLlama,   &kMistral,    &kQwen2,
                                       &kQwen3,    &kGemma,   &kGemma2,  &kGemma3Text, &kGemma3,
                                       &kOlmo2,    &kPhi3,    &kSmolLm3, &kGranite,    &kMixtral,
                                       &kQwen3Moe, &kOlmoe,   &kGptOss};
}

std::span<const Family* const> families() { return kFamilies; }

}  // namespace unpack::model

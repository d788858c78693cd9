// Models in files written by hand, on the host's devices.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "unit/random_model.h"
#include "unit/weights_files.h"

namespace unpack::testing {

inline const std::vector<TokenId> kIds = {3, 1, 4, 1, 5};

inline LoadOptions on(const std::string& device) {
  LoadOptions options;
  options.device = device;
  options.threads = 2;
  return options;
}

inline TraceResult trace_of(const Model& model, Options options = {},
                            const std::string& root = {}) {
  Question question;
  question.target.ids = {1};
  question.options = options;
  if (!root.empty()) question.root = root;
  return model.prepare(kIds).trace(question);
}

// A safetensors file written by hand: any type, no code of the loader.
class File {
 public:
  void add(const std::string& name, const std::string& type, const std::vector<std::int64_t>& shape,
           const void* data, std::size_t bytes) {
    // A tensor of as many bytes takes the place of another of its name: files have no holes.
    const std::size_t at =
        header_.contains(name) ? header_[name]["data_offsets"][0].get<std::size_t>() : data_.size();
    header_[name] = {{"dtype", type}, {"shape", shape}, {"data_offsets", {at, at + bytes}}};
    data_.replace(at, bytes, static_cast<const char*>(data), bytes);
  }
  void add(const Tensors& from, const std::string& name, const std::string& as = {}) {
    const std::vector<float>& values = from.values.at(name);
    add(as.empty() ? name : as, "F32", from.shapes.at(name), values.data(),
        values.size() * sizeof(float));
  }
  void write(const test::TempFolder& folder, const std::string& config) const {
    folder.write("config.json", config);
    folder.write("model.safetensors", test::safetensors_bytes(header_.dump(), data_));
  }

 private:
  nlohmann::json header_ = nlohmann::json::object();
  std::string data_;
};

inline Tensors tensors_of(const Shape& shape, std::uint64_t seed) {
  return random_tensors_of(shape.config(), seed);
}

inline Shape gpt_oss(int experts, int chosen) {
  Shape shape;
  shape.family = "gpt_oss";
  shape.experts = experts;
  shape.chosen = chosen;
  return shape;
}

// A test on the two devices that take every family.
class OnHost : public ::testing::TestWithParam<const char*> {
 protected:
  double limit(double in_double, double in_float) const {
    return std::string(GetParam()) == "reference" ? in_double : in_float;
  }
};
#define UNPACK_ON_HOST(suite)                                                     \
  INSTANTIATE_TEST_SUITE_P(Devices, suite, ::testing::Values("reference", "cpu"), \
                           [](const auto& about) { return std::string(about.param); })

}  // namespace unpack::testing

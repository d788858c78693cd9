// Tiny checkpoints for the tests of the loader: good ones, and bad ones made by hand.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "test_paths.h"
#include "unit/temp_folder.h"
#include "unpack/error.h"

namespace unpack::test {

// A safetensors file from its header text and data.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i)
    out[i] = static_cast<char>((std::uint64_t{header.size()} >> (8 * i)) & 0xFF);
  return out + header + data;
}

inline std::string read_all(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(UNPACK_TEST_DATA) / "golden" / name;
}

// The text of the InputError that a call throws; it must be one line.
template <typename Call>
std::string input_error(Call&& call) {
  try {
    call();
  } catch (const InputError& e) {
    const std::string text = e.what();
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  }
  ADD_FAILURE() << "no InputError was thrown";
  return {};
}

inline void expect_mentions(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

}  // namespace unpack::test

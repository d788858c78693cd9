#include "batch/arrays.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "report/line_log.h"
#include "unpack/error.h"

namespace unpack {

namespace {

static_assert(std::endian::native == std::endian::little,
              "the files say that they are little-endian");

// An array of known shape, written in row order; it takes its name when it is whole.
class NpyFile {
 public:
  NpyFile(std::filesystem::path file, const char* type, const std::string& shape)
      : path_(std::move(file)), part_(path_.string() + ".part") {
    file_.reset(std::fopen(part_.c_str(), "wb"));
    // Format 1.0: magic, version, length of the header, header padded so that the values are
    // aligned to 64 bytes.
    std::string header =
        fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", type, shape);
    constexpr std::size_t kPrefix = 10, kAlign = 64;
    header.append(kAlign - (kPrefix + header.size() + 1) % kAlign, ' ');
    header += '\n';
    const std::string prefix = {'\x93',
                                'N',
                                'U',
                                'M',
                                'P',
                                'Y',
                                1,
                                0,
                                static_cast<char>(header.size() & 0xFF),
                                static_cast<char>(header.size() >> 8)};
    write(prefix.data(), prefix.size());
    write(header.data(), header.size());
  }
  template <typename T>
  void add(const std::vector<T>& values) {
    write(values.data(), values.size() * sizeof(T));
  }
  void close() {
    if (!file_ || std::fclose(file_.release()) != 0) fail();
    std::filesystem::rename(part_, path_);
  }

 private:
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  [[noreturn]] void fail() const {
    throw InputError(fmt::format("cannot write {}: is the disk full?", path_.string()));
  }
  void write(const void* data, std::size_t bytes) {
    if (!file_ || std::fwrite(data, 1, bytes, file_.get()) != bytes) fail();
  }
  std::filesystem::path path_, part_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace

void write_arrays(const std::filesystem::path& folder, std::size_t lines, std::size_t tokens,
                  std::size_t writers, const RunContext& context) {
  NpyFile token_credit(folder / "token_credit.npy", "<f8", fmt::format("({},)", tokens));
  NpyFile node_credit(folder / "node_credit.npy", "<f8", fmt::format("({}, {})", tokens, writers));
  std::vector<std::int64_t> offsets = {0}, index;
  read_sealed(folder / "results.jsonl", [&](std::string_view object) {
    context.report("arrays", static_cast<double>(index.size()), static_cast<double>(lines));
    const auto line = nlohmann::ordered_json::parse(object);
    const auto value = [](const nlohmann::ordered_json& x) {
      return x.is_number() ? x.get<double>() : std::nan("");
    };
    std::vector<double> credit;
    for (const auto& x : line.at("token_credit")) credit.push_back(value(x));
    std::vector<double> nodes(credit.size() * writers, std::nan(""));
    if (line.contains("node_credit")) {
      std::size_t w = 0;
      for (const auto& row : line.at("node_credit")) {
        for (std::size_t s = 0; s < credit.size(); ++s) nodes[s * writers + w] = value(row.at(s));
        ++w;
      }
    }
    token_credit.add(credit);
    node_credit.add(nodes);
    offsets.push_back(offsets.back() + static_cast<std::int64_t>(credit.size()));
    index.push_back(line.at("index").get<std::int64_t>());
  });
  NpyFile offset_file(folder / "offsets.npy", "<i8", fmt::format("({},)", offsets.size()));
  offset_file.add(offsets);
  NpyFile index_file(folder / "index.npy", "<i8", fmt::format("({},)", index.size()));
  index_file.add(index);
  for (NpyFile* file : {&token_credit, &node_credit, &offset_file, &index_file}) file->close();
}

}  // namespace unpack

#include "batch/arrays.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <vector>

#include "batch/facts.h"
#include "report/line_log.h"
#include "report/part_file.h"
#include "unpack/error.h"

namespace unpack::batch {

namespace {

static_assert(std::endian::native == std::endian::little,
              "the files say that they are little-endian");

// An array of known shape, written in row order; it takes its name when it is whole.
class NpyFile {
 public:
  NpyFile(const std::filesystem::path& file, const char* type, const std::string& shape)
      : file_(file) {
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
    file_.add(prefix);
    file_.add(header);
  }
  template <typename T>
  void add(const std::vector<T>& values) {
    file_.add({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
  }
  void close() { file_.close(); }

 private:
  report::PartFile file_;
};

}  // namespace

void write_arrays(const std::filesystem::path& folder, std::size_t lines, std::size_t tokens,
                  std::size_t writers, const RunContext& context) {
  NpyFile token_credit(folder / "token_credit.npy", "<f8", fmt::format("({},)", tokens));
  NpyFile node_credit(folder / "node_credit.npy", "<f8", fmt::format("({}, {})", tokens, writers));
  std::vector<std::int64_t> offsets = {0}, index;
  report::read_sealed(folder / "results.jsonl", [&](std::string_view object) {
    context.report("arrays", index.size(), lines);
    const LineValues line = read_line(object, (folder / "results.jsonl").string(), true);
    const std::vector<double>& credit = line.token_credit;
    std::vector<double> nodes(credit.size() * writers, std::nan(""));  // of a baseline
    if (!line.writers.empty()) {
      if (line.writers.size() != writers || line.node_credit.size() != nodes.size())
        throw InputError(fmt::format("{}: the line of prompt {} has {} components, not {}",
                                     (folder / "results.jsonl").string(), line.index + 1,
                                     line.writers.size(), writers));
      for (std::size_t w = 0; w < writers; ++w) {
        for (std::size_t s = 0; s < credit.size(); ++s)
          nodes[s * writers + w] = line.node_credit[w * credit.size() + s];
      }
    }
    token_credit.add(credit);
    node_credit.add(nodes);
    offsets.push_back(offsets.back() + std::ssize(credit));
    index.push_back(line.index);
  });
  NpyFile offset_file(folder / "offsets.npy", "<i8", fmt::format("({},)", offsets.size()));
  offset_file.add(offsets);
  NpyFile index_file(folder / "index.npy", "<i8", fmt::format("({},)", index.size()));
  index_file.add(index);
  for (NpyFile* file : {&token_credit, &node_credit, &offset_file, &index_file}) file->close();
}

}  // namespace unpack::batch

// Any bytes as run.json: refused with one line, or an object whose members can be asked for.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/json_reader.h"
#include "batch/run_file.h"
#include "one_line.h"
#include "unpack/error.h"
#include "unpack/shard.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using Kind = unpack::OrderedJson::value_t;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto run = unpack::base::read_ordered_json(text, "run.json", unpack::base::kSmallJson);
    (void)unpack::parse_shard(
        unpack::batch::run_member(run, "shard", Kind::string).get<std::string>());
    (void)unpack::batch::run_member(run, "prompts.records", Kind::number_unsigned);
    (void)unpack::batch::run_member(run, "writers", Kind::number_unsigned);
    (void)unpack::batch::run_member(run, "arrays", Kind::boolean);
  } catch (const unpack::InputError& error) {
    expect_one_line(error.what());
  } catch (const unpack::UsageError& error) {
    expect_one_line(error.what());
  }
  return 0;
}

#include "bench/text.h"

#include <fmt/format.h>

namespace unpack {

namespace bench {

std::string header_text(const BenchResult& r) {
  std::string text =
      fmt::format("{}: {} layers, {} heads, width {}, {} weights; {} thread{}, {}\n", r.model.name,
                  r.model.layers, r.model.heads, r.model.d_model, r.model.dtype, r.program.threads,
                  r.program.threads == 1 ? "" : "s", r.kernels);
  if (r.gemm_gflops > 0)
    text += fmt::format("R  large packed GEMM {:9.1f} GFLOP/s\nM  reading memory    {:9.1f} GB/s\n",
                        r.gemm_gflops, r.read_gbytes);
  return text;
}

std::string length_text(const BenchResult::Length& length) {
  return fmt::format("\n{} tokens\n", length.tokens);
}

std::string plan_text(const BenchResult::Length& length) {
  std::string text;
  for (const BenchPlan& part : length.plan)
    text += fmt::format("  plan: {:<14} {:>12.2f} GFLOP {:>10.3f} GB  {}\n", part.what, part.gflop,
                        part.gbyte, part.way);
  return text;
}

std::string row_text(const BenchRow& row, bool first) {
  std::string text;
  if (first)
    text = fmt::format("  {:<22} {:>10} {:>9} {:>8} {:>10} {:>7}\n", "", "seconds", "GFLOP", "GB",
                       "bound", "ratio");
  if (row.gflop > 0) {
    return text + fmt::format("  {:<22} {:>10.4f} {:>9.2f} {:>8.3f} {:>10.4f} {:>7.2f}  {}\n",
                              row.name, row.seconds, row.gflop, row.gbyte, row.bound,
                              row.seconds / row.bound, row.note);
  }
  return text + fmt::format("  {:<22} {:>10.4f} {:>37}  {}\n", row.name, row.seconds, "", row.note);
}

std::string after_rows_text(const BenchResult& r, const BenchResult::Length& length) {
  std::string text;
  for (const BenchRow& row : length.rows) {
    if (row.name == "one-shot trace")
      text += fmt::format("  a one-shot trace costs {:.1f} forward passes\n",
                          row.seconds / length.rows.front().seconds);
  }
  if (length.device_peak_mib > 0)
    text += fmt::format(
        "  a trace takes {:.0f} MiB of the device, weights included; {:.0f} MiB were counted for "
        "the prompt alone, {:.0f} with what the model takes\n",
        length.device_peak_mib, length.device_counted_mib,
        length.device_counted_mib + r.device_weights_mib);
  if (length.streamed) {
    const BenchStreamed& s = *length.streamed;
    text += fmt::format(
        "  with the weights of {} layers there {:.4f} s; {:.2f} GB go up, alone in {:.4f} s, with "
        "the work one after the other {:.4f} s\n",
        s.layers_kept, s.seconds, s.uploaded_gbytes, s.upload_seconds,
        s.upload_seconds + s.resident_seconds);
  }
  if (r.program.device == "cpu") {
    text +=
        fmt::format("  peak memory {:.0f} MiB, {:.0f} more than the model alone (bound {:.0f})\n",
                    length.peak_memory_mib, length.peak_memory_mib - r.base_memory_mib,
                    length.memory_bound_mib - r.base_memory_mib);
  }
  return text;
}

std::string tail_text(const BenchResult& r) {
  std::string text = fmt::format(
      "\npeak memory {:.0f} MiB; {:.0f} MiB with the model alone, whose weights are {:.0f} MiB in "
      "single precision\n",
      r.peak_memory_mib, r.base_memory_mib, r.weights_mib);
  if (r.device_held_mib > 0)
    text += fmt::format("taken from the device {:.0f} MiB\n", r.device_held_mib);
  return text;
}

}  // namespace bench

std::string to_terminal(const BenchResult& r) {
  using namespace bench;
  std::string text = header_text(r);
  for (const auto& length : r.lengths) {
    text += length_text(length) + plan_text(length);
    for (std::size_t i = 0; i < length.rows.size(); ++i) text += row_text(length.rows[i], i == 0);
    text += after_rows_text(r, length);
  }
  return text + tail_text(r);
}

}  // namespace unpack

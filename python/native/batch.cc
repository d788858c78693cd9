#include "unpack/batch.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include "bind.h"
#include "call.h"
#include "unpack/merge.h"

namespace py = pybind11;

namespace unpack::python {
namespace {

// What travels between processes is plain: tuples of numbers, texts and bytes.
py::tuple maker_tuple(const Model& model) {
  const BatchMaker m = batch_maker(model);
  return py::make_tuple(m.model.name, m.model.family, m.model.dtype, m.model.fingerprint,
                        m.model.layers, m.model.heads, m.model.d_model, m.model.gated, m.version,
                        m.device, m.weight_products, m.writers);
}

BatchMaker maker_from(const py::tuple& t) {
  BatchMaker m;
  std::size_t i = 0;
  m.model.name = t[i++].cast<std::string>();
  m.model.family = t[i++].cast<std::string>();
  m.model.dtype = t[i++].cast<std::string>();
  m.model.fingerprint = t[i++].cast<std::string>();
  m.model.layers = t[i++].cast<int>();
  m.model.heads = t[i++].cast<int>();
  m.model.d_model = t[i++].cast<int>();
  m.model.gated = t[i++].cast<bool>();
  m.version = t[i++].cast<std::string>();
  m.device = t[i++].cast<std::string>();
  m.weight_products = t[i++].cast<bool>();
  m.writers = t[i++].cast<std::vector<std::string>>();
  return m;
}

using RecordTuple =
    std::tuple<std::size_t, std::size_t, std::string, std::string>;  // index, line, fields, problem

py::list trace_records(const Model& model, const std::string& options,
                       const std::vector<RecordTuple>& tuples, const py::object& progress) {
  std::vector<PromptRecord> records;
  records.reserve(tuples.size());
  for (const auto& [index, line, fields, problem] : tuples)
    records.push_back({index, line, fields, problem});
  const Asked question = read_asked(options, &model);
  const std::vector<BatchLine> lines = interruptible(progress, [&](const RunContext& context) {
    return trace_prompts(model, question, records, context);
  });
  py::list out;
  for (const BatchLine& line : lines) {
    const py::bytes facts(reinterpret_cast<const char*>(line.facts.data()),
                          line.facts.size() * sizeof(double));
    out.append(py::make_tuple(line.index, line.error, py::bytes(line.text), line.reason, facts,
                              line.unknown));
  }
  return out;
}

BatchOptions batch_options(const std::filesystem::path& out, const std::string& options,
                           const std::string& shard, bool strict, bool arrays, const Model* model) {
  BatchOptions o;
  o.out = out;
  o.question = read_asked(options, model);
  if (!shard.empty()) o.shard = parse_shard(shard);
  o.strict = strict;
  o.arrays = arrays;
  return o;
}

py::tuple result_tuple(const BatchResult& r) {
  return py::make_tuple(r.folder.string(), r.results, r.errors, r.done_before, r.warnings);
}

std::unique_ptr<BatchFolder> open_folder(const std::string& prompts, const std::string& format,
                                         const std::filesystem::path& out,
                                         const std::string& options, const std::string& shard,
                                         bool strict, bool arrays, const py::tuple& maker) {
  const BatchOptions o = batch_options(out, options, shard, strict, arrays, nullptr);
  const BatchMaker made_by = maker_from(maker);
  const py::gil_scoped_release release;
  return std::make_unique<BatchFolder>(o, made_by,
                                       PromptReader(prompts, parse_prompt_format(format)));
}

py::list next_records(BatchFolder& folder, std::size_t prompts) {
  py::list out;
  for (const PromptRecord& r : folder.next(prompts))
    out.append(py::make_tuple(r.index, r.line, r.fields, r.problem));
  return out;
}

void append_lines(BatchFolder& folder, const py::list& tuples) {
  std::vector<BatchLine> lines;
  for (const py::handle& item : tuples) {
    const auto t = item.cast<py::tuple>();
    BatchLine line{t[0].cast<std::size_t>(),
                   t[1].cast<bool>(),
                   t[2].cast<std::string>(),
                   t[3].cast<std::string>(),
                   {},
                   t[5].cast<std::vector<std::string>>()};
    const auto facts = t[4].cast<std::string>();
    line.facts.resize(facts.size() / sizeof(double));
    std::copy(facts.begin(), facts.end(), reinterpret_cast<char*>(line.facts.data()));
    lines.push_back(std::move(line));
  }
  const py::gil_scoped_release release;
  folder.append(lines);
}

py::tuple run_here(const Model& model, const std::string& prompts, const std::string& format,
                   const std::filesystem::path& out, const std::string& options,
                   const std::string& shard, bool strict, bool arrays, const py::object& progress) {
  const BatchOptions o = batch_options(out, options, shard, strict, arrays, &model);
  return result_tuple(interruptible(progress, [&](const RunContext& context) {
    PromptReader reader(prompts, parse_prompt_format(format));
    const Model ready = for_batch(model, reader.count());
    return run_batch(ready, std::move(reader), o, context);
  }));
}

py::tuple merge(const std::vector<std::filesystem::path>& folders, const std::filesystem::path& out,
                const std::string& device, int threads, const py::object& progress) {
  LoadOptions load;
  load.device = device;
  load.threads = threads;
  const MergeResult result = interruptible(progress, [&](const RunContext& context) {
    return merge_shards(folders, out, load, context);
  });
  return py::make_tuple(result.folder.string(), result.text, result.warnings);
}

}  // namespace

void bind_batch(py::module_& module) {
  const auto model = py::arg("model"), prompts = py::arg("prompts"), format = py::arg("format"),
             out = py::arg("out"), options = py::arg("options"), shard = py::arg("shard"),
             strict = py::arg("strict"), arrays = py::arg("arrays"), progress = py::arg("progress");
  module.def("batch_maker", &maker_tuple, model);
  module.def(
      "batch_options",
      [](const Model& m, const std::string& given) { return to_json(read_asked(given, &m)); },
      model, options);
  module.def("products_pay", &products_pay, model, prompts);
  module.def("for_batch", &for_batch, model, prompts, py::call_guard<py::gil_scoped_release>());
  module.def(
      "count_prompts",
      [](const std::string& file, const std::string& kind) {
        const py::gil_scoped_release release;
        return PromptReader(file, parse_prompt_format(kind)).count();
      },
      prompts, format);
  module.def("trace_records", &trace_records, model, options, py::arg("records"), progress);
  module.def("batch", &run_here, model, prompts, format, out, options, shard, strict, arrays,
             progress);
  module.def("merge", &merge, py::arg("folders"), out, py::arg("device"), py::arg("threads"),
             progress);
  py::class_<BatchFolder>(module, "BatchFolder")
      .def(py::init(&open_folder), prompts, format, out, options, shard, strict, arrays,
           py::arg("maker"))
      .def_property_readonly("total", &BatchFolder::total)
      .def_property_readonly("done", &BatchFolder::done)
      .def("next", &next_records, py::arg("prompts"))
      .def("append", &append_lines, py::arg("lines"))
      .def("finish", [](BatchFolder& folder) {
        BatchResult result;
        {
          const py::gil_scoped_release release;
          result = folder.finish();
        }
        return result_tuple(result);
      });
}

}  // namespace unpack::python

// Ground truth: models compiled from programs, whose circuits are known, and how much of them each
// method finds.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "experiments/compiled/measures.h"
#include "experiments/compiled/methods.h"
#include "experiments/compiled/picture.h"
#include "experiments/compiled/save.h"
#include "experiments/session.h"
#include "unpack/error.h"

namespace unpack {

namespace {

namespace cc = experiments::compiled;

constexpr double kLeastCredit = 1e-3, kMostDecoy = 0.05, kMostDead = 1e-4, kNoisyAuroc = 0.95;

cc::Settings settings_of(const ExperimentOptions& o, const std::string& format, double noise) {
  if (!(noise >= 0) || !std::isfinite(noise))
    throw UsageError(fmt::format("noise takes numbers of 0 or more, not {}", noise));
  if (!(o.compiled.sharpness > 0) || !std::isfinite(o.compiled.sharpness))
    throw UsageError("sharpness takes a number above 0");
  return {format == "gpt2" ? cc::Format::gpt2 : cc::Format::llama, o.compiled.sharpness, noise,
          o.seed};
}

std::vector<std::string> chosen_programs(const CompiledOptions& options) {
  if (!options.program) return cc::program_names();
  (void)cc::make_program(*options.program, {}, 1);  // an unknown one is known before any work
  return {*options.program};
}

experiments::Json numbers_of(const std::vector<double>& values) {
  experiments::Json out = experiments::Json::array();
  for (const double x : values) out.push_back(std::stod(fmt::format("{:.5g}", x)));
  return out;
}

experiments::Json to_json(const cc::Measures& m) {
  const auto or_null = [](double x) {
    return std::isnan(x) ? experiments::Json(nullptr) : experiments::Json(x);
  };
  return {{"auroc", m.auroc},
          {"auprc", m.auprc},
          {"smallest", m.smallest},
          {"largest_false", m.largest_false},
          {"decoy", m.decoy},
          {"dead", m.dead},
          {"token_auroc", or_null(m.token_auroc)},
          {"token_auprc", or_null(m.token_auprc)},
          {"token_smallest", or_null(m.token_smallest)}};
}

bool passes(const experiments::Json& m, double noise) {
  if (noise > 0) return m.at("auroc").get<double>() >= kNoisyAuroc;
  return m.at("auroc").get<double>() >= 1.0 && m.at("smallest").get<double>() >= kLeastCredit &&
         m.at("decoy").get<double>() <= kMostDecoy && m.at("dead").get<double>() <= kMostDead;
}

}  // namespace

std::vector<std::string> compiled_programs() { return cc::program_names(); }

std::vector<std::string> experiments::compiled_formats(const CompiledOptions& options) {
  if (!options.format) return {"gpt2", "llama"};
  if (*options.format != "gpt2" && *options.format != "llama")
    throw UsageError(fmt::format("format takes gpt2 or llama, not '{}'", *options.format));
  return {*options.format};
}

Model experiments::open_compiled(const ExperimentOptions& options, const std::string& format) {
  const cc::Settings settings = settings_of(options, format, 0);
  const cc::Program program = cc::make_program(chosen_programs(options.compiled)[0], settings, 1);
  return cc::compile(program, settings).open(options.load);
}

std::string experiments::save_compiled(const ExperimentOptions& options, int n) {
  const auto programs = chosen_programs(options.compiled);
  const auto formats = experiments::compiled_formats(options.compiled);
  const std::size_t count = programs.size() * formats.size() * options.compiled.noise.size();
  std::string out;
  for (const std::string& format : formats) {
    for (const std::string& name : programs) {
      for (const double noise : options.compiled.noise) {
        const cc::Settings settings = settings_of(options, format, noise);
        const cc::Program program = cc::make_program(name, settings, n);
        const std::filesystem::path folder =
            count == 1 ? *options.compiled.save
                       : *options.compiled.save / fmt::format("{}-{}-{:g}", name, format, noise);
        cc::save_with_circuit(program, cc::compile(program, settings), settings, folder);
        out += fmt::format("{}\n", folder.string());
      }
    }
  }
  return out;
}

experiments::Json experiments::run_compiled(experiments::ModelSession& session) {
  const ExperimentOptions& o = session.options;
  const std::vector<std::string> programs = chosen_programs(o.compiled);
  experiments::Json summary = experiments::Json::object();
  std::size_t index = 0, done = 0;
  const std::size_t all = programs.size() * o.compiled.noise.size() * session.n;
  for (const std::string& name : programs) {
    for (const double noise : o.compiled.noise) {
      const cc::Settings settings = settings_of(o, session.name, noise);
      const cc::Program program = cc::make_program(name, settings, session.n);
      const cc::CompiledModel compiled = cc::compile(program, settings);
      const cc::PlainModel plain(compiled);
      const Model model = compiled.open(o.load);
      const std::size_t edges = program.edges().size();
      std::map<std::string, std::vector<double>> sizes;
      std::map<std::string, std::vector<std::vector<double>>> tokens;
      int right = 0, prompts = 0;
      for (std::size_t p = 0; p < program.prompts.size(); ++p) {
        session.context.report("prompts", done++, all);
        const cc::Prompt& prompt = program.prompts[p];
        const experiments::Json* record =
            session.record(index++, session.key(fmt::format("{}|{:g}|{}", name, noise, p)), [&] {
              experiments::Json methods = experiments::Json::object();
              for (const auto& [method, answer] :
                   cc::ask_all(program, model, plain, prompt, session.context))
                methods[method] = {{"edges", numbers_of(answer.edges)},
                                   {"tokens", numbers_of(answer.tokens)}};
              const cc::Run run = plain.run(prompt.ids, prompt.target, prompt.contrast);
              const auto best = std::max_element(run.logits.begin(), run.logits.end());
              return experiments::Json{{"difference", run.difference},
                                       {"right", best - run.logits.begin() == prompt.target},
                                       {"methods", methods}};
            });
        if (!record) continue;
        ++prompts;
        right += record->at("right").get<bool>();
        for (const auto& [method, answer] : record->at("methods").items()) {
          const std::vector<double> credit = experiments::numbers(answer.at("edges"));
          std::vector<double>& sum = sizes[method];
          sum.resize(edges, 0.0);
          for (std::size_t i = 0; i < edges; ++i)
            sum[i] += std::fabs(credit[i]) / program.prompts.size();
          tokens[method].push_back(experiments::numbers(answer.at("tokens")));
        }
      }
      if (session.records.partial()) continue;
      experiments::Json& to = summary[name][fmt::format("{:g}", noise)];
      to = {{"what", program.what},
            {"prompts", prompts},
            {"right", right},
            {"edges", edges},
            {"methods", experiments::Json::object()}};
      int truths = 0;
      for (const cc::EdgeName& edge : program.edges())
        truths += program.truth(edge) == cc::Truth::yes;
      to["true_edges"] = truths;
      for (const auto& [method, credit] : sizes) {
        cc::Measures measures = cc::measure_edges(program, credit);
        cc::measure_tokens(program, tokens.at(method), measures);
        to["methods"][method] = to_json(measures);
      }
      if (noise == o.compiled.noise.front() && sizes.contains("best"))
        to["picture"] = cc::circuit_picture(program, sizes.at("best"), "best");
    }
  }
  return summary;
}

namespace {

// One method over all programs of a format at one noise.
struct Overall {
  double auroc = 1, auprc = 1, smallest = INFINITY, decoy = 0, dead = 0, tokens = 0;
  double mean_auroc = 0;
  int programs = 0, passed = 0, with_tokens = 0;

  void add(const experiments::Json& m, double noise) {
    auroc = std::min(auroc, m.at("auroc").get<double>());
    mean_auroc += m.at("auroc").get<double>();
    auprc = std::min(auprc, m.at("auprc").get<double>());
    smallest = std::min(smallest, m.at("smallest").get<double>());
    decoy = std::max(decoy, m.at("decoy").get<double>());
    dead = std::max(dead, m.at("dead").get<double>());
    if (!m.at("token_auroc").is_null()) {
      tokens += m.at("token_auroc").get<double>();
      ++with_tokens;
    }
    ++programs;
    passed += passes(m, noise);
  }
};

std::string small(double x) {
  return x == 0 ? "0" : (x < 0.001 ? fmt::format("{:.0e}", x) : fmt::format("{:.3f}", x));
}

// Three digits that round to 1 only where it is 1.
std::string rate(double x) { return fmt::format("{:.3f}", x < 1 ? std::min(x, 0.999) : x); }

}  // namespace

std::string experiments::report_compiled(const experiments::Json& summaries,
                                         std::vector<experiments::ReportFile>& files) {
  std::string out =
      "Models compiled from programs, so that their true edges (writer, reader, branch) are known. "
      "An "
      "edge's credit on a prompt is summed over the positions of writer and reader and divided by "
      "the "
      "sum of the sizes of the direct credit (methods that compare with the counterfactual: by the "
      "change of the logit difference); its size is averaged over prompts. AUROC, AUPRC: how well "
      "that "
      "size tells true edges from all others. Smallest: on the weakest true edge. Decoy: credit of "
      "the "
      "head that writes the same vector everywhere, over that of the strongest true edge of its "
      "reader. "
      "Dead: most credit on an edge out of a component whose output nobody reads. Tokens: mean "
      "AUROC of "
      "the size of token credit for the tokens the answer depends on.\n\nPassed: AUROC 1, smallest "
      "at "
      "least 1e-3, decoy at most 5%, dead at most 1e-4; with noise AUROC at least 0.95.\n\n";
  for (const auto& [format, programs] : summaries.items()) {
    std::vector<std::string> noises;
    for (const auto& item : programs.begin().value().items()) noises.push_back(item.key());
    for (const std::string& noise : noises) {
      out += fmt::format("## {}, noise {}\n\n", format, noise);
      std::vector<std::vector<std::string>> rows = {{"method", "passed", "AUROC: worst", "mean",
                                                     "AUPRC: worst", "smallest", "decoy", "dead",
                                                     "tokens"}};
      for (const cc::MethodName& method : cc::method_names()) {
        Overall overall;
        for (const auto& [name, by_noise] : programs.items())
          overall.add(by_noise.at(noise).at("methods").at(method.name), std::stod(noise));
        rows.push_back({fmt::format("{} ({})", method.name, method.what),
                        fmt::format("{} of {}", overall.passed, overall.programs),
                        rate(overall.auroc), rate(overall.mean_auroc / overall.programs),
                        rate(overall.auprc), small(overall.smallest), small(overall.decoy),
                        small(overall.dead),
                        overall.with_tokens == 0 ? std::string("n/a")
                                                 : rate(overall.tokens / overall.with_tokens)});
      }
      out += experiments::markdown_table(rows) + "\n";
    }
  }
  out += "## Program by program\n\nAUROC / smallest credit on a true edge.\n\n";
  const std::vector<std::string> shown = {"paper", "centered",  "best", "patching",
                                          "EAP",   "EAP-IG 20", "IFR"};
  for (const auto& [format, programs] : summaries.items()) {
    for (const auto& item : programs.begin().value().items()) {
      const std::string& noise = item.key();
      std::vector<std::vector<std::string>> rows = {
          {fmt::format("{}, noise {}", format, noise), "right", "true edges"}};
      rows[0].insert(rows[0].end(), shown.begin(), shown.end());
      for (const auto& [name, by_noise] : programs.items()) {
        const experiments::Json& p = by_noise.at(noise);
        std::vector<std::string> row = {
            name, fmt::format("{} of {}", p.at("right").get<int>(), p.at("prompts").get<int>()),
            fmt::format("{} of {}", p.at("true_edges").get<int>(), p.at("edges").get<int>())};
        for (const std::string& method : shown) {
          const experiments::Json& m = p.at("methods").at(method);
          row.push_back(fmt::format("{} / {}", rate(m.at("auroc").get<double>()),
                                    small(m.at("smallest").get<double>())));
        }
        rows.push_back(row);
      }
      out += experiments::markdown_table(rows) + "\n";
    }
  }
  out +=
      "## Circuits\n\nLeft what the program says, right as many edges as it has, by credit under "
      "`best`; wider is more (logarithmic), dashed red is false. K blue, Q brown, V green.\n";
  const auto first = summaries.begin();
  for (const auto& [name, by_noise] : first.value().items()) {
    const experiments::Json& p = by_noise.begin().value();
    if (!p.contains("picture")) continue;
    const std::string file = fmt::format("compiled-{}.svg", experiments::slug(name));
    files.push_back({file, p.at("picture").get<std::string>()});
    out += fmt::format("\n### {}\n\n{}.\n\n![{} circuit]({})\n", name,
                       p.at("what").get<std::string>(), name, file);
  }
  return out;
}

}  // namespace unpack

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "commands.h"
#include "unpack/about.h"

namespace unpack::cli {
namespace {

std::string page(const std::vector<Finding>& findings) {
  std::size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.subject.size());
  std::string text;
  std::size_t problems = 0;
  for (const Finding& f : findings) {
    text += fmt::format("{:<{}}  {}\n", f.subject, width, f.found);
    if (!f.problem.empty()) text += fmt::format("{:<{}}  ! {}\n", "", width, f.problem);
    if (!f.remedy.empty()) text += fmt::format("{:<{}}  > {}\n", "", width, f.remedy);
    problems += f.problem.empty() ? 0 : 1;
  }
  text += problems == 0   ? "\nNothing is missing.\n"
          : problems == 1 ? "\n1 remark (!), and what mends it (>).\n"
                          : fmt::format("\n{} remarks (!), and what mends them (>).\n", problems);
  return text;
}

}  // namespace

void add_doctor(App& app, Context& context) {
  const auto outputs = std::make_shared<Outputs>();
  Command command = app.add("doctor", "What the program found on this machine, and what is missing",
                            "unpack doctor");
  outputs->add_json(command);
  command.run([outputs, &context] {
    outputs->check();
    const std::vector<Finding> findings = diagnose();
    if (outputs->any()) {
      outputs->write("--json", [&] { return diagnosis_json(findings); });
    } else {
      print(page(findings));
    }
    const bool broken =
        std::any_of(findings.begin(), findings.end(), [](const Finding& f) { return f.fatal; });
    if (broken) context.status = 1;
  });
}

}  // namespace unpack::cli

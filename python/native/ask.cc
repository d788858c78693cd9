// Conversations, answers of several tokens, and the sources of an answer.
#include "unpack/ask.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bind.h"
#include "call.h"
#include "unpack/chat.h"
#include "unpack/cost.h"
#include "unpack/prepared.h"
#include "unpack/sources.h"

namespace py = pybind11;

namespace unpack::python {
namespace {

MadePrompt made_prompt(const Model& model, const std::optional<std::string>& text,
                       const std::optional<std::vector<TokenId>>& ids,
                       const std::optional<std::string>& messages, bool bos, bool chat,
                       const std::optional<std::string>& system,
                       const std::optional<std::string>& chat_template) {
  GivenPrompt given;
  given.text = text;
  given.ids = ids;
  given.messages = messages;
  given.no_bos = !bos;
  given.chat.on = chat;
  given.chat.system = system;
  given.chat.chat_template = chat_template;
  return make_prompt(model, given);
}

std::vector<std::tuple<std::string, int, int>> turns(const MadePrompt& prompt) {
  std::vector<std::tuple<std::string, int, int>> out;
  for (const Span& turn : prompt.turns) out.emplace_back(turn.name, turn.from, turn.to);
  return out;
}

AnswerResult answer(const Model& model, const MadePrompt& prompt, const Asked& asked,
                    const py::object& progress) {
  const AnswerTokens tokens = answer_tokens(asked, model, prompt);
  return interruptible(progress, [&](const RunContext& context) {
    return explain_answer(model, prompt, tokens, asked.question.options, context);
  });
}

std::string cost(const Model& model, const MadePrompt& prompt, const Asked& asked,
                 const py::object& progress) {
  std::optional<AnswerTokens> tokens;
  if (asked.answer) tokens = answer_tokens(asked, model, prompt);
  const Planned planned = planned_question(prompt, asked.question, tokens);
  return interruptible(progress, [&](const RunContext& context) {
    return to_json(measured_cost(model, prompt.ids, planned, context), planned);
  });
}

std::string groups(const Model& model, const MadePrompt& prompt, const Asked& asked,
                   const TraceResult& trace) {
  return to_json(span_credits(spans_of(asked, model, prompt), trace.tokens, trace.token_credit));
}

// A question about documents, as Python gives it.
SourcesOptions about_documents(const std::string& question, const std::string& documents,
                               const std::optional<std::string>& given, int generate,
                               const std::optional<std::string>& prompt_template,
                               const std::optional<std::string>& document_template, bool chat,
                               const Asked& asked) {
  SourcesOptions options;
  options.question = question;
  options.documents = parse_documents(documents, "documents");
  options.answer = given;
  options.generate = generate;
  if (prompt_template) options.prompt_template = *prompt_template;
  if (document_template) options.document_template = *document_template;
  options.chat = chat;
  options.options = asked.question.options;
  return options;
}

SourcesResult sources(const Model& model, const SourcesOptions& options,
                      const py::object& progress) {
  return interruptible(
      progress, [&](const RunContext& context) { return find_sources(model, options, context); });
}

std::string sources_cost(const Model& model, const SourcesOptions& options,
                         const py::object& progress) {
  return interruptible(progress, [&](const RunContext& context) {
    const std::vector<TokenId> prompt = sources_tokens(model, options);
    const Planned planned = planned_sources(model, prompt.size(), options);
    return to_json(measured_cost(model, prompt, planned, context), planned);
  });
}

template <class Result>
std::string terminal_text(const Result& result, bool color, int width, bool unicode) {
  return to_terminal(result, {color, width, unicode});
}

}  // namespace

void bind_ask(py::module_& module) {
  const auto model = py::arg("model");
  const auto prompt = py::arg("prompt");
  const auto asked = py::arg("asked");
  const auto progress = py::arg("progress");
  const auto color = py::arg("color");
  const auto width = py::arg("width");
  const auto unicode = py::arg("unicode");
  py::class_<MadePrompt>(module, "MadePrompt")
      .def(py::init(&made_prompt), model, py::arg("text"), py::arg("ids"), py::arg("messages"),
           py::arg("bos"), py::arg("chat"), py::arg("system"), py::arg("chat_template"))
      .def_property_readonly("ids", [](const MadePrompt& p) { return p.ids; })
      .def_property_readonly("text", [](const MadePrompt& p) { return p.text; })
      .def_property_readonly("stops", [](const MadePrompt& p) { return p.stops; })
      .def_property_readonly("turns", &turns);
  py::class_<AnswerResult>(module, "AnswerResult")
      .def("json", [](const AnswerResult& r) { return to_json(r); })
      .def("terminal", &terminal_text<AnswerResult>, color, width, unicode);
  py::class_<SourcesResult>(module, "SourcesResult")
      .def("json", [](const SourcesResult& r) { return to_json(r); })
      .def("html", [](const SourcesResult& r) { return to_html(r); })
      .def("terminal", &terminal_text<SourcesResult>, color, width, unicode);
  module.def("has_chat_template", &has_chat_template, model);
  module.def("answer", &answer, model, prompt, asked, progress);
  module.def("cost", &cost, model, prompt, asked, progress);
  module.def("groups", &groups, model, prompt, asked, py::arg("trace"));
  py::class_<SourcesOptions>(module, "AboutDocuments")
      .def(py::init(&about_documents), py::arg("question"), py::arg("documents"), py::arg("answer"),
           py::arg("generate"), py::arg("template"), py::arg("document_template"), py::arg("chat"),
           asked);
  module.def("sources", &sources, model, asked, progress);
  module.def("sources_cost", &sources_cost, model, asked, progress);
}

}  // namespace unpack::python

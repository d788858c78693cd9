// Sources of an answer as JSON, for a terminal, and as a page.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/json.h"
#include "report/text.h"
#include "unpack/json.h"
#include "unpack/sources.h"

namespace unpack {
namespace {

using Json = OrderedJson;

double percent(double credit, const AnswerSentence& sentence) {
  double positive = 0;
  for (const double x : sentence.document_credit) positive += std::max(x, 0.0);
  return positive > 0 ? 100 * credit / positive : 0;
}

std::string one_line(std::string text, std::size_t most) {
  for (char& c : text) {
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  }
  if (text.size() <= most) return text;
  std::size_t cut = most;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0U) == 0x80U) --cut;
  return text.substr(0, cut) + "...";
}

// The page is one file: marks are coloured by the sentence of the answer that was clicked.
constexpr const char* kPage = R"(<!doctype html><html lang="en"><meta charset="utf-8">
<title>Sources of an answer</title><style>
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;
  background:#fff}
h2{font-size:1.05rem;margin:1.4rem 0 .3rem}.answer button{font:inherit;border:0;background:none;
  text-align:left;cursor:pointer;padding:.1rem .2rem;border-radius:.25rem}
.answer button[aria-pressed=true]{outline:2px solid #2563eb}.part{border-radius:.2rem}.credit{
  color:#555;font-size:.9rem}.answer button{color:inherit}
:root{color-scheme:light dark}@media (prefers-color-scheme:dark){body{color:#e5e7eb;
  background:#111827}.credit{color:#9ca3af}}
</style><h1>Sources of an answer</h1>)";
constexpr const char* kSourcesScript = R"(<script>
const data=JSON.parse(document.getElementById('data').textContent);
const buttons=[...document.querySelectorAll('.answer button')];
const signed=(x,n)=>(x>=0?'+':'')+x.toFixed(n);
function show(i){const s=data.sentences[i];if(!s)return;let most=1e-12;
document.getElementById('about').textContent='log-probability '+s.log_probability.toFixed(3)+
' \u00b7 credit of the rest of the prompt '+signed(s.other_credit,3)+
', of earlier tokens of the answer '+signed(s.answer_credit,3)+' \u00b7 strongest tokens: '+
s.strongest.map(t=>JSON.stringify(t.text)+' '+signed(t.credit,3)).join(', ');
s.documents.forEach(d=>d.sentences.forEach(x=>{most=Math.max(most,Math.abs(x.credit))}));
s.documents.forEach((d,k)=>{
document.getElementById('d'+k).textContent=signed(d.credit,3)+' ('+d.percent.toFixed(0)+'%)';
d.sentences.forEach((x,j)=>{const e=document.getElementById('p'+k+'_'+j),a=Math.abs(x.credit)/most;
e.style.background=(x.credit>=0?'rgba(37,99,235,':'rgba(220,38,38,')+(0.55*a).toFixed(3)+')';
e.title=signed(x.credit,4)})});
buttons.forEach((b,j)=>b.setAttribute('aria-pressed',j===i))}
buttons.forEach((b,i)=>b.addEventListener('click',()=>show(i)));show(0);
</script></html>
)";

}  // namespace

std::string to_json(const SourcesResult& result) {
  Json json = {
      {"version", 1},
      {"program", {{"version", result.program.version}, {"device", result.program.device}}},
      {"model",
       {{"name", result.model.name},
        {"family", result.model.family},
        {"dtype", result.model.dtype},
        {"fingerprint", result.model.fingerprint}}},
      {"question", result.question},
      {"prompt", result.prompt},
      {"answer", result.answer},
      {"generated", result.generated},
      {"prompt_length", result.prompt_length}};
  json["tokens"] = report::tokens_json(result.tokens);
  Json documents = Json::array();
  for (const SourcePlace& place : result.documents) {
    Json sentences = Json::array();
    for (const SourceSentence& sentence : place.sentences)
      sentences.push_back(
          {{"text", sentence.text}, {"from", sentence.span.from}, {"to", sentence.span.to}});
    documents.push_back({{"name", place.name},
                         {"from", place.span.from},
                         {"to", place.span.to},
                         {"sentences", std::move(sentences)}});
  }
  json["documents"] = std::move(documents);
  Json sentences = Json::array();
  for (const AnswerSentence& sentence : result.sentences) {
    Json credits = Json::array();
    for (std::size_t d = 0; d < sentence.document_credit.size(); ++d) {
      Json parts = Json::array();
      for (const double credit : sentence.sentence_credit[d])
        parts.push_back({{"credit", credit}, {"percent", percent(credit, sentence)}});
      credits.push_back({{"credit", sentence.document_credit[d]},
                         {"percent", percent(sentence.document_credit[d], sentence)},
                         {"sentences", std::move(parts)}});
    }
    Json strongest = Json::array();
    for (const SourceToken& token : sentence.strongest)
      strongest.push_back(
          {{"position", token.position}, {"text", token.text}, {"credit", token.credit}});
    sentences.push_back({{"text", sentence.text},
                         {"from", sentence.span.from},
                         {"to", sentence.span.to},
                         {"log_probability", sentence.log_probability},
                         {"documents", std::move(credits)},
                         {"other_credit", sentence.other_credit},
                         {"answer_credit", sentence.answer_credit},
                         {"strongest", std::move(strongest)}});
  }
  json["sentences"] = std::move(sentences);
  return report::compact(json);
}

std::string to_terminal(const SourcesResult& result, const TerminalStyle& style) {
  const std::size_t room = std::max(40, style.width - 40);
  std::string text;
  for (const AnswerSentence& sentence : result.sentences) {
    text += fmt::format("{}  (log-probability {:.3f})\n", one_line(sentence.text, room),
                        sentence.log_probability);
    for (std::size_t d = 0; d < result.documents.size(); ++d) {
      text += fmt::format("  {:>+9.4f} {:>+7.1f}%  {}\n", sentence.document_credit[d],
                          percent(sentence.document_credit[d], sentence), result.documents[d].name);
      const auto& parts = result.documents[d].sentences;
      for (std::size_t p = 0; p < parts.size() && parts.size() > 1; ++p) {
        text += fmt::format("    {:>+9.4f} {:>+7.1f}%  {}\n", sentence.sentence_credit[d][p],
                            percent(sentence.sentence_credit[d][p], sentence),
                            one_line(parts[p].text, room));
      }
    }
    text += fmt::format("  {:>+9.4f}           the rest of the prompt\n", sentence.other_credit);
    text +=
        fmt::format("  {:>+9.4f}           earlier tokens of the answer\n", sentence.answer_credit);
    text += "  strongest tokens:";
    for (const SourceToken& token : sentence.strongest)
      text +=
          fmt::format(" {}@{} {:+.3f}", report::compact(token.text), token.position, token.credit);
    text += "\n\n";
  }
  return text;
}

std::string to_html(const SourcesResult& result) {
  std::string page = kPage;
  page += fmt::format("<p class=\"credit\">{} &middot; blue: for the answer, red: against it</p>",
                      report::xml_escape(result.model.name));
  page += "<h2>Question</h2><p>" + report::xml_escape(result.question) +
          "</p><h2>Answer</h2><p class=\"answer\">";
  for (const AnswerSentence& sentence : result.sentences)
    page += "<button type=\"button\" aria-pressed=\"false\">" + report::xml_escape(sentence.text) +
            "</button> ";
  page += "</p><p class=\"credit\" id=\"about\"></p>";
  for (std::size_t d = 0; d < result.documents.size(); ++d) {
    page += fmt::format("<h2>{} <span class=\"credit\" id=\"d{}\"></span></h2><p>",
                        report::xml_escape(result.documents[d].name), d);
    const auto& parts = result.documents[d].sentences;
    for (std::size_t p = 0; p < parts.size(); ++p)
      page += fmt::format("<span class=\"part\" id=\"p{}_{}\">{}</span>", d, p,
                          report::xml_escape(parts[p].text));
    page += "</p>";
  }
  std::string data = to_json(result);
  // "</script>" inside a text must not end the data.
  for (std::size_t at = data.find("</"); at != std::string::npos; at = data.find("</", at + 2))
    data.replace(at, 2, "<\\/");
  page += "<script type=\"application/json\" id=\"data\">" + data + "</script>";
  return page + kSourcesScript;
}

}  // namespace unpack

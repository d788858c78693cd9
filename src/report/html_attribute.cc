#include <fmt/format.h>

#include "report/html_page.h"
#include "report/labels.h"
#include "report/svg_matrix.h"
#include "report/text.h"
#include "unpack/json.h"
#include "unpack/report.h"

namespace unpack {
namespace {

using namespace report;

// Pointing at a token of the continuation colours the tokens before it by the credit they got.
constexpr const char* kAttributeScript = R"js("use strict";
const data = JSON.parse(document.getElementById("rows").textContent);
const spans = [...document.querySelectorAll(".text span")];
const value = document.getElementById("value");
let chosen = null;
function paint(i) {
  const row = data[i], largest = Math.max(1e-300, ...row.credit.map(Math.abs));
  spans.forEach((e, s) => {
    const share = s < row.credit.length ? row.credit[s] / largest : 0, size = Math.abs(share);
    const colour = `var(--${share < 0 ? "negative" : "positive"}) ${Math.round(6 + 80 * size)}%`;
    e.style.background = size < 0.01 ? "" : `color-mix(in srgb, ${colour}, transparent)`;
    e.style.color = size > 0.65 ? "var(--on)" : "";
    e.title = s < row.credit.length ? `credit ${(row.credit[s] ?? 0).toPrecision(3)}` : "";
    e.classList.toggle("now", e.dataset.row === String(i));
  });
  value.textContent = `probability ${(100 * row.probability).toFixed(1)}%`;
}
for (const e of document.querySelectorAll(".said")) {
  const i = Number(e.dataset.row);
  e.addEventListener("mouseenter", () => paint(i));
  e.addEventListener("focus", () => paint(i));
  e.addEventListener("mouseleave", () => { if (chosen !== null) paint(chosen); });
  e.addEventListener("click", () => { chosen = i; paint(i); });
}
if (data.length) { chosen = 0; paint(0); }
)js";

// The token as it stands in running text: blanks and line breaks kept, other control characters
// made visible.
std::string flowing(const std::string& text) {
  std::string out;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    out += xml_escape(visible(rest.substr(0, end), {true}));
    if (end == std::string_view::npos) break;
    out += "↵\n";
    rest.remove_prefix(end + 1);
  }
  return out;
}

}  // namespace

std::string to_html(const AttributeResult& r) {
  std::vector<int> row_at(r.tokens.size() + 1, -1);
  for (std::size_t i = 0; i < r.rows.size(); ++i) {
    const int said = r.rows[i].position + 1;
    if (said >= 0 && static_cast<std::size_t>(said) < row_at.size()) row_at[said] = i;
  }
  std::string text;
  const auto span = [&](const std::string& token, int row) {
    text += row < 0 ? fmt::format("<span>{}</span>", flowing(token))
                    : fmt::format("<span class=\"said\" tabindex=\"0\" data-row=\"{}\">{}</span>",
                                  row, flowing(token));
  };
  for (std::size_t s = 0; s < r.tokens.size(); ++s) span(r.tokens[s].text, row_at[s]);
  if (row_at.back() >= 0)
    span(r.rows[row_at.back()].text,
         row_at.back());  // the last prediction need not be among the tokens

  OrderedJson rows = OrderedJson::array();
  for (const AttributeRow& row : r.rows)
    rows.push_back({{"credit", row.token_credit}, {"probability", row.probability}});
  SvgCanvas matrix;
  const Extent size = draw_attribution(matrix, r, 0, 0);
  const std::string title = "Token credit of a continuation";
  std::string body = fmt::format(
      "<h1>{}</h1>\n<p class=\"sub\">{}</p>\n<section><h2>Text</h2><p class=\"legend\"><span>Point "
      "at an underlined token: the text before it shows the credit "
      "it got.</span>"
      "<span><i style=\"background:var(--positive)\"></i>speaks for it</span><span><i "
      "style=\"background:var(--negative)\"></i>speaks against it</span><span "
      "id=\"value\"></span></p>"
      "<div class=\"text\">{}</div></section>\n<section><h2>Matrix</h2><p class=\"note\">A row per "
      "predicted token with its probability; colour relative to "
      "the row's largest, numbers in "
      "percent of its positive credit.</p><div class=\"scroll\">{}</div></section>\n<script "
      "type=\"application/json\" id=\"rows\">{}</script>\n",
      title, xml_escape(model_text(r.model, true)), text,
      matrix.element(size.width, size.height, "token credit", ""), script_json(rows.dump()));
  return render_page({title, body, kAttributeScript});
}

}  // namespace unpack

#include "report/html_page.h"

#include "report/svg_canvas.h"
#include "report/text.h"

namespace unpack::report {
namespace {

constexpr const char* kPageCss = R"css(
*{box-sizing:border-box}
html{color-scheme:light dark}
body{margin:0;background:var(--paper);color:var(--ink);
  font:15px/1.5 system-ui,-apple-system,'Segoe UI','Helvetica Neue',Arial,sans-serif}
main{max-width:1880px;margin:0 auto;padding:28px 32px 48px}
h1{font-size:24px;line-height:1.25;margin:0 0 4px;font-weight:650}
h2{font-size:15px;margin:0 0 10px;font-weight:650}
p{margin:0 0 8px}
.sub{color:var(--soft);margin-bottom:22px}
.note{color:var(--soft);font-size:13px}
.warn{border-left:4px solid var(--negative);padding:6px 12px;margin:0 0 18px;
  background:var(--band);border-radius:0 6px 6px 0}
section{margin:0 0 30px;min-width:0}
.row{display:flex;flex-wrap:wrap;gap:24px 48px;align-items:flex-start}
.scroll{overflow:auto;max-width:100%}
svg{display:block;height:auto}
.graph{max-width:100%;min-width:820px}
.split{display:grid;grid-template-columns:minmax(0,1fr) minmax(300px,400px);gap:24px}
@media (max-width:1100px){.split{grid-template-columns:1fr}}
.paths{list-style:none;margin:0;padding:0;max-height:88vh;overflow:auto;position:sticky;top:12px;
  border:1px solid var(--faint);border-radius:8px}
.paths li{display:grid;grid-template-columns:26px 58px 1fr;gap:6px;align-items:baseline;
  padding:5px 10px;font:12px/1.5 'DejaVu Sans Mono',Menlo,Consolas,monospace;cursor:pointer;
  outline:0}
.paths li+li{border-top:1px solid var(--faint)}
.paths li:hover,.paths li:focus-visible,.paths li.hot{background:var(--band);
  box-shadow:inset 3px 0 var(--mark)}
.k{align-self:center}.k i{display:block;width:22px;margin:0 2px;border-radius:3px;
  background:currentColor}
.paths b{font-weight:inherit;white-space:nowrap}
.v{text-align:right;font-weight:700}.pos{color:var(--positive)}.neg{color:var(--negative)}
.tok,.cell,.node,.edge{cursor:pointer}
.edge{transition:opacity .12s}
.focus .edge,.focus .hop{opacity:.07}
.focus .node,.focus .tok,.focus .cell{opacity:.3}
.focus .edge.hot,.focus .hop.hot,.focus .node.hot,.focus .tok.hot,.focus .cell.hot{opacity:1}
.text{font:15px/2.1 'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre-wrap;
  overflow-wrap:anywhere}
.text span{position:relative;border-radius:4px;padding:3px 0}
.text .said{border-bottom:2px solid var(--soft);cursor:pointer;outline:0}
.text .said:hover,.text .said:focus-visible,.text .now{border-bottom-color:var(--positive);
  box-shadow:0 0 0 2px var(--mark)}
.legend{display:flex;gap:18px;flex-wrap:wrap;color:var(--soft);font-size:13px;margin:0 0 10px}
.legend i{display:inline-block;width:14px;height:14px;border-radius:3px;vertical-align:-2px;
  margin-right:5px}
)css";

}  // namespace

std::string script_json(std::string_view json) {
  std::string out;
  for (const char c : json) {
    if (c == '<') {
      out += "\\u003c";
    } else if (c == '>') {
      out += "\\u003e";
    } else if (c == '&') {
      out += "\\u0026";
    } else {
      out += c;
    }
  }
  return out;
}

std::string render_page(const Page& page) {
  std::string out =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>";
  out += xml_escape(page.title);
  out += "</title>\n<style>\n" + css_light(":root") + "@media (prefers-color-scheme:dark){" +
         css_dark(":root") + "}\n" + css_rules() + kPageCss + "</style>\n</head>\n<body>\n<main>\n";
  out += page.body;
  out += "</main>\n";
  if (!page.script.empty()) out += "<script>\n" + page.script + "</script>\n";
  return out + "</body>\n</html>\n";
}

}  // namespace unpack::report

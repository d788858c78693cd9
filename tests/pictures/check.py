#!/usr/bin/env python3
"""Reads the pictures and graphs of a folder with the programs people use for them.

usage: check.py FOLDER
Prints what was checked and what was skipped; exit status 1 where something cannot be read.
"""
import html.parser
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

VOID = {"meta", "link", "br", "hr", "img", "input"}
failures = []


def check(good, what):
    if not good:
        failures.append(what)
        print("FAIL", what)


def run(command, **more):
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=120, **more
    )


def svg(file):
    root = xml.etree.ElementTree.parse(file).getroot()
    width, height = float(root.get("width")), float(root.get("height"))
    for element in root.iter():
        if element.tag.endswith("}text") and "transform" not in element.attrib:
            x, y = float(element.get("x")), float(element.get("y"))
            check(
                -1 <= x <= width + 1 and -1 <= y <= height + 1,
                f"{file.name}: text at {x}, {y} lies outside the picture",
            )
    print("read", file.name, f"{width:.0f} x {height:.0f}")


class Balance(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        check(self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:] or 'nothing'}")
        if self.open:
            self.open.pop()


def dump(chromium, file, folder):
    """What the page has become. On a machine with much else to do the browser sometimes ends before
    it has a page at all: then it is started again, and says why it ended.
    """
    for attempt in range(3):
        done = run(
            [
                chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                f"--user-data-dir={folder}/profile{attempt}", "--dump-dom", file.as_uri()
            ]
        )
        if done.stdout.strip():
            break
        print(f"the browser ended with {done.returncode} and no page:", done.stderr.strip()[-300:])
    return done.stdout


def page(file):
    text = file.read_text(encoding="utf-8")
    parser = Balance()
    parser.feed(text)
    check(not parser.open, f"{file.name}: {parser.open} stay open")
    check(
        not re.search(r"https?://|src=|@import|url\(", text), f"{file.name} reaches for the network"
    )
    print("read", file.name)
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if not chromium:
        print("skipped: no chromium to point at a path in", file.name)
        return
    probe = """<script>
const entry = document.querySelector(".paths li") || document.querySelector(".said");
if (entry) entry.dispatchEvent(new MouseEvent("mouseenter"));
document.body.dataset.edges = document.querySelectorAll(".edge.hot").length;
document.body.dataset.tokens =
  document.querySelectorAll(".tok.hot,.text span[style*=background]").length;
document.body.dataset.rest = document.querySelectorAll(".edge:not(.hot)").length;
</script></body>"""
    with tempfile.TemporaryDirectory() as folder:
        probed = pathlib.Path(folder) / "page.html"
        probed.write_text(text.replace("</body>", probe), encoding="utf-8")
        shown = dump(chromium, probed, folder)
    found = {
        name: int(value)
        for name, value in re.findall(r'data-(edges|tokens|rest)="(\d+)"', shown)
    }
    check(len(found) == 3, f"{file.name}: the page's script did not run")
    check(found.get("tokens", 0) > 0, f"{file.name}: pointing at an entry lights up no token")
    if 'class="paths"' in text:
        check(
            found.get("edges", 0) > 0 and found.get("rest", 0) > 0,
            f"{file.name}: pointing at a path does not single it out: {found}",
        )
    print("pointed at an entry of", file.name, found)


def graphs(folder):
    with open(folder / "graph.json", encoding="utf-8") as file:
        plain = json.load(file)
    try:
        import networkx
    except ImportError:
        print("skipped: no networkx to read the graphs")
        return
    try:
        linked = networkx.node_link_graph(plain, edges="edges")
    except TypeError:  # before networkx 3.4
        linked = networkx.node_link_graph(plain, link="edges")
    for graph in (networkx.read_graphml(folder / "graph.graphml"), linked):
        check(
            graph.number_of_nodes() == len(plain["nodes"])
            and graph.number_of_edges() == len(plain["edges"]),
            "networkx reads another size",
        )
        check(networkx.is_directed_acyclic_graph(graph), "the graph has a cycle")
        check(
            graph.nodes["target"]["kind"] == "target"
            and isinstance(graph.nodes["target"]["credit"], float),
            "the target lost its data",
        )
        into = sum(data["credit"] for _, _, data in graph.in_edges("target", data=True))
        out = sum(
            data["credit"]
            for node in graph
            if graph.nodes[node]["kind"] in ("emb", "pos")
            for _, _, data in graph.out_edges(node, data=True)
        )
        check(
            abs(into - out) < 1e-9,
            f"credit into the target {into} is not that out of the tokens {out}",
        )
    print("networkx read", graph)


def dot(file):
    if not shutil.which("dot"):
        print("skipped: no dot to draw", file.name)
        return
    done = run(["dot", "-Tplain", str(file)])
    check(done.returncode == 0 and not done.stderr.strip(), f"dot: {done.stderr}")
    print("dot drew", done.stdout.count("\nnode "), "nodes")


def tikz(file):
    if not shutil.which("pdflatex"):
        print("skipped: no pdflatex to compile", file.name)
        return
    with tempfile.TemporaryDirectory() as folder:
        done = run(
            [
                "pdflatex", "-interaction=nonstopmode", "-halt-on-error",
                f"-output-directory={folder}", str(file)
            ]
        )
        check(
            done.returncode == 0 and "(1 page" in done.stdout,
            f"pdflatex cannot compile {file.name}: {done.stdout[-600:]}",
        )
        check(
            "Missing character" not in done.stdout,
            f"{file.name} needs a character that the font lacks",
        )
    print("pdflatex compiled", file.name)


def main():
    folder = pathlib.Path(sys.argv[1])
    for file in sorted(folder.glob("*.svg")):
        svg(file)
    for file in sorted(folder.glob("*.html")):
        page(file)
    for file in sorted(folder.glob("*.tex")):
        tikz(file)
    for file in sorted(folder.glob("*.dot")):
        dot(file)
    graphs(folder)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""The LaTeX that the page saves, compiled where there is a LaTeX."""
import os
import shutil
import subprocess

import pytest
from asking import ANNA, state, why
from test_exports import save

pytestmark = pytest.mark.skipif(
    not shutil.which("pdflatex"), reason="no pdflatex here to compile the saved LaTeX"
)
STRANGE = "Zo\u00eb paid 50% & {x_1} ~ $5 ^ \\ #2 \U0001f642 \u65e5\u672c <b>|\"quoted\" to"


def compiled(folder, name, content):
    """One page, every letter there."""
    file = folder / name
    file.write_bytes(content)
    done = subprocess.run(
        [
            "pdflatex", "-interaction=nonstopmode", "-halt-on-error", f"-output-directory={folder}",
            str(file)
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
    )
    assert done.returncode == 0 and "(1 page" in done.stdout, (name, done.stdout[-800:])
    assert (
        "Missing character" not in done.stdout and "size substitution" not in done.stdout.lower()
    ), name
    if os.environ.get("UNPACK_SHOTS"):
        shutil.copy(file.with_suffix(".pdf"), os.environ["UNPACK_SHOTS"])


READY = {
    "why": ".branches",
    "layers": ".lens",
    "heads": ".patterns",
    "answer": ".output",
    "compare": ".components",
    "circuit": ".group",
}


def test_the_saved_figure_of_every_tab_compiles(page, downloaded, tmp_path):
    page.open(why(node="A5.H3@13", other=ANNA, pins="Movers:A5.H3@13"))
    for tab, ready in READY.items():
        page.click(f"#tab-{tab}")
        page.one(ready)
        compiled(tmp_path, *save(page, downloaded, "tex"))


def test_whatever_stands_in_the_prompt_compiles(page, downloaded, tmp_path):
    page.open(state(prompt=STRANGE))
    page.one("#graph .edge")
    compiled(tmp_path, *save(page, downloaded, "tex"))

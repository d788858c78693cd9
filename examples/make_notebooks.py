"""Makes the executed notebooks from the percent-format scripts beside this file (Debian:
jupyter-nbconvert, python3-ipykernel, python3-pandas).

    PYTHONPATH=build/release/python /usr/bin/python3 examples/make_notebooks.py
"""
import re
import sys
from pathlib import Path

import nbformat
from nbconvert.preprocessors import ExecutePreprocessor

HERE = Path(__file__).resolve().parent


def notebook_of(script: str) -> nbformat.NotebookNode:
    """Cells start at `# %%`; those marked [markdown] are comments in the script."""
    cells = []
    for kind, body in re.findall(
        r"^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", script, re.MULTILINE | re.DOTALL
    ):
        if kind:
            cells.append(
                nbformat.v4.new_markdown_cell(re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip())
            )
        else:
            cells.append(nbformat.v4.new_code_cell(body.strip().replace("  # fmt: skip", "")))
    for i, cell in enumerate(cells):
        cell["id"] = f"cell-{i}"  # the same on every run
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def main() -> None:
    for name in sys.argv[1:] or ["ioi", "own_metric"]:
        notebook = notebook_of((HERE / f"{name}.py").read_text())
        ExecutePreprocessor(timeout=600, kernel_name="python3").preprocess(
            notebook, {"metadata": {"path": str(HERE)}}
        )
        for cell in notebook.cells:
            cell.metadata = {}  # time stamps
        notebook.metadata.pop("language_info", None)
        nbformat.write(notebook, HERE / f"{name}.ipynb")
        print(f"{name}.ipynb")


if __name__ == "__main__":
    main()

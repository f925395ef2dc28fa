"""The notebooks run from the first cell to the last, and show values as a notebook shows them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import warm

TESTS = Path(__file__).parents[1]
NOTEBOOKS = sorted((TESTS.parent / "docs" / "notebooks").glob("*.ipynb"))
# Runs each cell as Jupyter does: statements, then the last expression, which is displayed.
DRIVER = """
import ast, json, sys

text = open(sys.argv[1], encoding="utf-8").read()
if "flwr" in text:
    import patient_ray
    patient_ray.install()
space = {"__name__": "__main__"}
for cell in json.loads(text)["cells"]:
    if cell["cell_type"] != "code":
        continue
    tree = ast.parse("".join(cell["source"]))
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), space)
    if last is None:
        continue
    shown = eval(compile(ast.Expression(last.value), "cell", "eval"), space)
    if shown is not None:
        assert shown._repr_html_().startswith("<"), type(shown)
        print("displayed:", type(shown).__name__)
"""
SHOWS = {
    "embeddings": ("Guarantee", "SearchResult", "AuditResult"),
    "flower": (),
    "tagger": ("Guarantee",),
}


@pytest.mark.real("ray")  # Flower's simulation starts one
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_displays_its_values(path: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = warm.run(["-c", DRIVER, path], cwd=tmp_path, env=environment, timeout=1800)
    assert done.returncode == 0, done.stderr
    shown = [line.removeprefix("displayed: ") for line in done.stdout.splitlines()]
    assert [name for name in shown if name in SHOWS["embeddings"]] == list(SHOWS[path.stem])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs_and_explains_its_cells(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = notebook["cells"]
    assert cells[0]["cell_type"] == "markdown" and "".join(cells[0]["source"]).startswith("# ")
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len({cell["id"] for cell in cells}) == len(cells)
    assert set(SHOWS) == {each.stem for each in NOTEBOOKS}

"""The README's twelve lines: few, and the same however often they are run."""

from __future__ import annotations

import re
from pathlib import Path

import warm
from blindsight import Ledger

ROOT = Path(__file__).parents[2]
(LINES,) = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
)


def _run(folder: Path) -> str:
    done = warm.run(["-W", "error", "-c", LINES], cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_twelve_lines_run_twice_release_the_same_codes_and_are_charged_once(tmp_path: Path) -> None:
    assert len(LINES.splitlines()) <= 12
    first = _run(tmp_path)
    assert _run(tmp_path) == first
    with Ledger(tmp_path / "ledger.db", dataset="ward-7") as ledger:
        assert ledger.balance("record").spent.epsilon == 8


def test_the_readme_names_every_extra() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    readme = (ROOT / "README.md").read_text()
    assert [
        name
        for name in extras
        if name not in {"bench", "docs", "dev"} and f"`{name}`" not in readme
    ] == []

"""Every example runs as a newcomer would run it, prints something, and is short."""

from __future__ import annotations

from pathlib import Path

import pytest

import warm

EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("*.py"))
ROOMS = ("hashing", "federated", "metric", "sketching", "tagging", "audit")
# Half a minute at most on a core of its own; this only keeps a hanging one from blocking the
# others.
PATIENCE = 600


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_prints(path: Path, tmp_path: Path) -> None:
    done = warm.run([path], cwd=tmp_path, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_gallery_shows_an_example_and_what_it_printed(path: Path) -> None:
    gallery = (path.parents[1] / "gallery.md").read_text()
    assert f'"docs/examples/{path.name}"' in gallery
    assert len(path.with_suffix(".txt").read_text().splitlines()) >= 3, "make examples writes it"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_on_a_page(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 80


@pytest.mark.parametrize("room", ROOMS)
def test_every_method_has_an_example(room: str) -> None:
    assert any(path.stem.startswith(room) for path in EXAMPLES)

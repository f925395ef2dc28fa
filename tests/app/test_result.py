"""Results print, render and serialise, whatever their texts contain."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from blindsight.app.defaults import no_progress
from blindsight.app.result import JobResult, ResultTable, to_plain, tqdm_progress
from blindsight.privacy import Guarantee, Planned
from blindsight.privacy.mechanisms import KaryResponse

CELL = Planned(what="cell", mechanism=KaryResponse(epsilon=4.0, k=10, unit="record"))
GUARANTEE = Guarantee(releases=(CELL,), model="local")


class Hit(NamedTuple):
    id: str
    score: float


@dataclasses.dataclass(frozen=True)
class Example(JobResult):
    path: Path
    name: str
    hits: tuple[Hit, ...]
    values: np.ndarray
    guarantee: Guarantee

    @property
    def title(self) -> str:
        return f"Result of {self.name}"

    def facts(self) -> list[tuple[str, str]]:
        return [("name", self.name), ("long", "word " * 60)]

    def tables(self) -> list[ResultTable]:
        return [ResultTable("Hits", ("id", "score"), [(h.id, f"{h.score:g}") for h in self.hits])]


def example(name: str) -> Example:
    hits = (Hit(name, 0.5), Hit("b", float("inf")))
    return Example(Path("out"), name, hits, np.arange(3), GUARANTEE)


def test_every_field_becomes_a_json_value():
    fields = json.loads(json.dumps(example("a").to_dict(), allow_nan=False))
    assert fields["path"] == "out" and fields["values"] == [0, 1, 2]
    assert fields["hits"] == [{"id": "a", "score": 0.5}, {"id": "b", "score": None}]
    assert fields["guarantee"] == json.loads(GUARANTEE.to_json())


def test_text_shows_all_facts_and_tables_in_lines_that_fit():
    lines = str(example("a")).splitlines()
    assert lines[0] == "Result of a" and lines[1].split() == ["name", "a"]
    assert sum(line.count("word") for line in lines) == 60
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines[-2:]] == [["a", "0.5"], ["b", "inf"]]


def test_titles_and_tables_fit_eighty_columns_and_paths_stay_whole():
    path = "/".join(["folder"] * 20)
    shown = str(example("many words " * 20 + path))
    assert shown.count(path) == 3 and shown.split().count("many") == 60
    assert max(len(line) for line in shown.splitlines() if path not in line) <= 80


def test_html_escapes_every_text():
    page = example("<script>alert(1)</script>")._repr_html_()
    assert "<script>" not in page and page.count("&lt;script&gt;") == 3


def test_what_has_no_json_form_is_refused():
    for value in (b"bytes", object(), {"a": object()}):
        with pytest.raises(TypeError, match="no form as JSON"):
            to_plain(value)


def test_results_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        example("a").name = "b"  # type: ignore[misc]


def test_the_default_progress_reports_nothing(capsys):
    no_progress("reading", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_progress_goes_to_bars_that_are_made_and_closed_as_tqdm_s_are() -> None:
    log: list[object] = []

    class Bar:
        def __init__(self, *, desc: str, total: int | None, bar_format: str | None) -> None:
            self.n, self.desc = 0.0, desc
            log.append(("new", desc, total, bar_format))

        def update(self, n: float) -> None:
            self.n += n
            log.append((self.desc, self.n))

        def close(self) -> None:
            log.append(("closed", self.desc))

    progress = tqdm_progress(Bar)
    progress("reading", 0, 0)
    progress("releasing", 1, 2)
    progress("releasing", 2, 2)
    assert log == [
        ("new", "reading", None, "{desc}"),
        ("reading", 0),
        ("closed", "reading"),
        ("new", "releasing", 2, None),
        ("releasing", 1),
        ("releasing", 2),
        ("closed", "releasing"),
    ]

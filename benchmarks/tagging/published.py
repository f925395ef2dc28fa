"""The result sheet that the paper's authors publish with their code: its arithmetic, where the sheet is at hand."""

from __future__ import annotations

import csv
from collections.abc import Iterator

from benchmarks.harness import Row
from blindsight.data import data_folder

__all__ = ["published_rows"]

_PLACE = ("p2_results", "results.csv")
_ROUNDING = 1e-3


def published_rows() -> Iterator[Row]:
    """In how many rows of the sheet OF1 is the harmonic mean of OP and OR, with noise and without."""
    folder = data_folder()
    path = None if folder is None else folder.joinpath(*_PLACE)
    if path is None or not path.is_file():
        yield Row(id="tagging.skipped.published", value=0, unit="skipped", note="the authors' sheet is not here")
        return
    with path.open(newline="", encoding="utf-8") as file:
        sheet = list(csv.DictReader(file))
    plain = [line for line in sheet if line["row"] in ("ML-GCN", "R-ML-GCN")]
    noisy = [line for line in sheet if line not in plain]
    for name, lines in (("without_noise", plain), ("with_noise", noisy)):
        yield Row(id=f"tagging.published.f1_is_harmonic_mean.{name}", value=float(sum(map(_harmonic, lines))),
                  unit=f"of {len(lines)} rows", note="OF1 = 2 OP OR / (OP + OR) in the authors' sheet")  # fmt: skip
    above = sum(float(line["OF1"]) > (float(line["OP"]) + float(line["OR"])) / 2 + _ROUNDING for line in sheet)
    yield Row(id="tagging.published.f1_above_the_mean", value=float(above), unit=f"of {len(sheet)} rows",
              note="no F1 can be above the mean of precision and recall")  # fmt: skip


def _harmonic(line: dict[str, str]) -> bool:
    p, r, f = (float(line[name]) for name in ("OP", "OR", "OF1"))
    return abs(2 * p * r / (p + r) - f) < _ROUNDING

"""The result sheet that the authors publish with their code, where it is at hand: its numbers and
its arithmetic.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

from benchmarks.harness import Row
from blindsight.data import data_folder

__all__ = ["METRICS", "paper_numbers", "published_rows"]

# The paper's twelve metrics by our names; the authors' top-3 counts only scores above 0.
METRICS = {
    **{name: name for name in ("OP", "OR", "OF1", "CP", "CR", "CF1")},
    **{f"{name}3passing": f"{name}_3" for name in ("OP", "OR", "OF1", "CP", "CR", "CF1")},
}
_PLACE = ("p2_results", "results.csv")
_ROUNDING = 2e-4  # numbers have four places
_F1 = ("OP", "OR", "OF1"), ("CP", "CR", "CF1"), ("OP_3", "OR_3", "OF1_3"), ("CP_3", "CR_3", "CF1_3")
_MODELS = {
    "ML-GCN": "ml-gcn",
    "R-ML-GCN": "r-ml-gcn",
    "P2-ML-GCN": "p2",
    "RP2-ML-GCN": "rp2",
    "P2-ML-GCN with S_b": "p2-sb",
    "RP2-ML-GCN with S_b": "rp2-sb",
    "P2-ML-GCN (Corollary 1)": "corollary1",
    "P2-ML-GCN (Corollary 2)": "corollary2",
    "Approach [1]": "weights",
    "Approach [42]": "features",
}


def paper_numbers(data: str) -> dict[str, dict[str, float]]:
    """The authors' twelve metrics on "Voc2007" or "MS-COCO", by our rows' names; Figure 3 has the
    former only.
    """
    found = {}
    for line in _sheet():
        name = _name(line)
        if line["setting"].startswith(data) or name.startswith("fig3"):
            found[name] = {ours: float(line[theirs]) for ours, theirs in METRICS.items()}
    return found


def _name(line: dict[str, str]) -> str:
    """Which of our rows a line of the sheet stands beside."""
    number, setting, row = line["figure"].removeprefix("Figure "), line["setting"], line["row"]
    if number == "3":
        return f"fig3a.lambda{row}" if "Lambda" in setting else f"fig3b.sb{row}"
    if number == "4":
        return f"fig4.{_MODELS[row]}"
    epsilon = re.search(r"Epsilon = ([\d.]+)", setting)
    assert epsilon is not None  # noqa: S101  (the sheet's own words)
    if number == "5":
        return f"fig5.{_MODELS[row]}.eps{epsilon[1]}"
    noise = "" if row == "ML-GCN" else f"eps{epsilon[1]}."
    return f"fig{number}.{_MODELS[row]}.{noise}{line['epoch'].lower().replace(' ', '')}"


def published_rows() -> Iterator[Row]:
    """In how many rows of the sheet OF1 is the harmonic mean of OP and OR: without noise, P2 and
    RP2, and others.
    """
    sheet = _sheet()
    if not sheet:
        yield Row(
            id="tagging.skipped.published",
            value=0,
            unit="skipped",
            note="the authors' sheet is not here",
        )
        return
    plain = [line for line in sheet if line["row"] in ("ML-GCN", "R-ML-GCN")]
    others = [line for line in sheet if line["row"].startswith("Approach")]
    noisy = [line for line in sheet if line not in plain and line not in others]
    for name, lines in (
        ("without_noise", plain),
        ("p2_and_rp2", noisy),
        ("others_methods", others),
    ):
        yield Row(
            id=f"tagging.published.f1_is_harmonic_mean.{name}",
            value=float(sum(map(_harmonic, lines))),
            unit=f"of {len(lines)} rows",
            note="OF1 = 2 OP OR / (OP + OR) in the authors' sheet",
        )
    above = sum(any(_above(line, *names) for names in _F1) for line in sheet)
    yield Row(
        id="tagging.published.f1_above_the_mean",
        value=float(above),
        unit=f"of {len(sheet)} rows",
        note="one of four F1; no F1 can be above the mean of precision and recall",
    )


def _sheet() -> list[dict[str, str]]:
    folder = data_folder()
    path = None if folder is None else folder.joinpath(*_PLACE)
    if path is None or not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _above(line: dict[str, str], precision: str, recall: str, f1: str) -> bool:
    return float(line[f1]) > (float(line[precision]) + float(line[recall])) / 2 + _ROUNDING


def _harmonic(line: dict[str, str]) -> bool:
    p, r, f = (float(line[name]) for name in ("OP", "OR", "OF1"))
    return abs(2 * p * r / (p + r) - f) < _ROUNDING

"""The report on one's own file shows claim, proof and attack on one picture, and what the file
itself gives away.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindsight.audit import audit
from blindsight.audit.engine.outputs import frozen
from blindsight.audit.report.file_report import changes, report_of
from blindsight.audit.report.page import Report
from blindsight.hashing import LSH, PITQ, CodebookHasher, PHashing
from blindsight.metric import DPPMetric
from blindsight.sketching import FlippedBits, NegativeSketcher
from blindsight.tagging import LaplaceAnswers, Ordinary, PrivateTagger

pytestmark = pytest.mark.usefixtures("same_noise")

rng = np.random.default_rng(0)
X = rng.standard_normal((120, 16))
LABELS = (rng.random((120, 3)) < 0.4).astype(int)
IMAGES = rng.integers(0, 256, (3, 12, 12), dtype=np.uint8)
PAIRS, SIMILAR = rng.standard_normal((30, 2, 8)), np.arange(30) % 2

ROC, BACK = "Claim, proof and attack", "What can be reconstructed of an image"
KINDS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "flipped codes": (
        lambda: PHashing(LSH(24), epsilon=1.0, calibration="paper", learned_from="public").fit(X),
        (ROC,),
    ),
    "codebook": (
        lambda: CodebookHasher(epsilon=2.0, n_cells=8, learned_from="public").fit(X),
        (ROC,),
    ),
    "metric": (
        lambda: DPPMetric(4, epsilon=1.0, transitive=False).fit(PAIRS, SIMILAR),
        (ROC, "What the metric tells about one label"),
    ),
    "tagger": (
        lambda: PrivateTagger(Ordinary(steps=2), LaplaceAnswers(4.0), classes=3).fit(X, LABELS),
        (ROC, "What asking again reveals"),
    ),
    "sketches": (
        lambda: NegativeSketcher("Q6").fit(IMAGES).sketch(IMAGES),
        (ROC, "What is in your file", BACK),
    ),
}


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    with frozen(0):
        return {name: report_of(audit(make(), trials=20_000)) for name, (make, _) in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_roc_and_what_it_gives_away(reports, kind: str) -> None:
    shown = {figure.title: figure for figure in reports[kind].figures}
    for title in KINDS[kind][1]:
        assert "<svg" in shown[title].picture or "data:image/png" in shown[title].picture
        assert shown[title].rows, f"{title} has no numbers for Markdown and JSON"


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_opens_with_no_network_and_never_says_private(reports, kind: str) -> None:
    page = reports[kind].to_html()
    links = re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)""", page) + re.findall(
        r"url\(([^)]*)\)", page
    )
    assert all(link.startswith(("data:", "#")) for link in links)
    assert "<script" not in page
    words = {verdict.word for verdict in reports[kind].verdicts}
    assert words <= {"REFUTED", "not refuted"}
    assert not re.search(r"\b(is|are) private\b", page)


@pytest.mark.parametrize("kind", KINDS)
def test_all_three_formats_hold_card_numbers_figures_and_what_to_change(
    reports, kind: str, tmp_path: Path
) -> None:
    page, text, fields = (path.read_text() for path in reports[kind].write(tmp_path))
    stored = json.loads(fields)
    assert stored["cards"]
    assert {figure["title"] for figure in stored["figures"]} >= set(KINDS[kind][1])
    for written in (page, text):
        assert "What to change" in written
        assert all(title in written for title in KINDS[kind][1])
        assert "ε ≥" in written


def test_the_curve_of_a_refuted_claim_lies_above_it(reports) -> None:
    assert reports["flipped codes"].refuted
    (figure,) = (f for f in reports["flipped codes"].figures if f.title == ROC)
    for row in figure.rows[1:]:
        assert row["claim allows"] < row["attack"] <= row["proven allows"]


def test_one_who_knows_digits_gets_more_back_of_a_sketch_than_the_mean_image(reports) -> None:
    (figure,) = (f for f in reports["sketches"].figures if f.title == BACK)
    found = {row["from"]: row["PSNR in dB"] for row in figure.rows}
    mean = found.pop("mean image")
    assert len(found) >= 3
    assert max(found.values()) > mean + 3


def test_asking_again_reveals_more(reports) -> None:
    (figure,) = (f for f in reports["tagger"].figures if f.title == "What asking again reveals")
    assert figure.rows[-1]["rank correlation"] > figure.rows[0]["rank correlation"]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: PHashing(LSH(24), epsilon=1.0, unit="bit", learned_from="public").fit(X),
            "set unit='record'",
        ),
        (
            lambda: PHashing(LSH(24), epsilon=1.0, calibration="paper", learned_from="public").fit(
                X
            ),
            "use calibration='proven'",
        ),
        (
            lambda: PHashing(LSH(24), epsilon=25.0, learned_from="public").fit(X),
            "lower epsilon below 10",
        ),
        (
            lambda: PHashing(LSH(24), epsilon=2.0, random_state=1, learned_from="public").fit(X),
            "random_state=None",
        ),
        (
            lambda: PHashing(LSH(24), epsilon=2.0, learned_from="private").fit(X),
            "learned_from='public'",
        ),
        (
            lambda: PITQ(4, epsilon=1.0, calibration="paper", n_iterations=2).fit(X),
            "nothing is proven",
        ),
        (lambda: FlippedBits(2.0).fit(IMAGES), "a pixel is not a picture"),
        (lambda: KINDS["tagger"][0](), "charge every answer"),
        (lambda: KINDS["tagger"][0](), "training records: train with PrivateTagger"),
        (lambda: KINDS["sketches"][0](), "The image is handed over"),
    ],
)
def test_what_is_off_is_named_with_what_to_do(make, sentence: str) -> None:
    assert any(sentence in line for line in changes(audit(make(), trials=5000)))


def test_where_nothing_is_off_nothing_is_advised() -> None:
    found = audit(CodebookHasher(epsilon=2.0, n_cells=8, learned_from="public").fit(X), trials=5000)
    assert changes(found) == []
    report = Report(title="t", verdicts=[found.verdict], changes=changes(found))
    assert "Nothing measured here calls for a change" in report.to_html()

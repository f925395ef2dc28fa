"""What a user has made can be audited from its file alone, and the report says it in three
formats.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from blindsight.audit.report.page import Figure, Report, gallery, three_numbers
from blindsight.audit.target import audit_file
from blindsight.cli.main import app
from blindsight.core.errors import BlindsightError, HostileFile, InvalidData
from blindsight.hashing import ITQ, LSH, CodebookHasher, PHashing
from blindsight.metric import DPPMetric
from blindsight.privacy import Disclosure
from blindsight.sketching import NegativeSketcher

pytestmark = pytest.mark.usefixtures("same_noise")

X = np.random.default_rng(0).standard_normal((120, 16))


@pytest.fixture
def saved(tmp_path: Path):
    def save(estimator, *data) -> Path:
        path = tmp_path / "model.safetensors"
        estimator.fit(*data).save(path)
        return path

    return save


def test_paper_flips_are_refuted_and_exit_with_1(saved, tmp_path: Path) -> None:
    path = saved(PHashing(LSH(24), epsilon=1.0, calibration="paper", learned_from="public"), X)
    found = audit_file(path)
    assert found.verdict is not None
    assert found.verdict.refuted
    assert found.card.refuted
    done = CliRunner().invoke(app, ["audit", str(path), "--out", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["verdicts"][0]["verdict"] == "REFUTED"
    page = (tmp_path / "out" / "report.html").read_text()
    assert "REFUTED" in page
    assert page.count("<figure>") == 2
    assert (
        page.index("is claimed per record")
        < page.index("<figure>")
        < page.index("Claimed, proven, audited")
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: PHashing(LSH(24), epsilon=2.0, learned_from="public"),
        lambda: CodebookHasher(epsilon=2.0, n_cells=8, learned_from="public"),
    ],
)
def test_proven_releases_are_not_refuted_and_exit_with_0(saved, make) -> None:
    path = saved(make(), X)
    found = audit_file(path, trials=50_000)
    assert found.verdict is not None
    assert not found.verdict.refuted
    assert 0 < found.verdict.audited.epsilon <= 2.0


def test_the_command_exits_with_0_where_nothing_is_refuted(saved) -> None:
    done = CliRunner().invoke(
        app, ["audit", str(saved(CodebookHasher(epsilon=2.0, n_cells=8, learned_from="public"), X))]
    )
    assert done.exit_code == 0
    assert "not refuted" in done.stdout


def test_a_promise_per_bit_is_attacked_on_codes_that_differ_in_one_bit(saved) -> None:
    path = saved(
        PHashing(
            LSH(48, center=False),
            epsilon=1.0,
            unit="bit",
            calibration="paper",
            learned_from="public",
        ),
        X,
    )
    found = audit_file(path, trials=50_000)
    assert found.verdict is not None
    assert 0.4 < found.verdict.audited.epsilon <= found.card.epsilon  # type: ignore[union-attr]


def test_a_metric_is_refitted_on_neighbours(saved) -> None:
    pairs = np.random.default_rng(1).standard_normal((30, 2, 3))
    path = saved(DPPMetric(epsilon=1.0, transitive=False), pairs, np.arange(30) % 2)
    found = audit_file(path, trials=100_000)
    assert found.verdict is not None
    assert not found.verdict.refuted


def test_sketches_get_a_disclosure_and_no_epsilon(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 12, 12), dtype=np.uint8)
    NegativeSketcher("Q6").fit(images).sketch(images).save(tmp_path / "sent.sketch")
    found = audit_file(tmp_path / "sent.sketch", trials=2000)
    assert isinstance(found.card, Disclosure)
    assert found.verdict is not None
    assert found.verdict.claimed is None
    assert not found.verdict.published
    done = CliRunner().invoke(app, ["audit", str(tmp_path / "sent.sketch")])
    assert done.exit_code == 0
    assert "DISCLOSURE CARD" in done.stdout


def test_a_damaged_file_is_called_damaged_whatever_it_holds(saved, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 12, 12), dtype=np.uint8)
    NegativeSketcher("Q6").fit(images).sketch(images).save(tmp_path / "sketches")
    for path in (
        tmp_path / "sketches",
        saved(PHashing(LSH(24), epsilon=2.0, learned_from="public"), X),
    ):
        content = bytearray(path.read_bytes())
        content[-200] ^= 1  # within an array
        path.write_bytes(content)
        with pytest.raises(HostileFile, match="is damaged"):
            audit_file(path, trials=2000)


def test_what_promises_nothing_says_so(saved, tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="promises nothing"):
        audit_file(saved(ITQ(8), X))
    with pytest.raises(InvalidData, match="does not exist"):
        audit_file(tmp_path / "nothing")
    (tmp_path / "junk").write_bytes(b"junk")
    with pytest.raises(BlindsightError):
        audit_file(tmp_path / "junk")
    with pytest.raises(BlindsightError, match="either"):
        CliRunner().invoke(app, ["audit"], catch_exceptions=False)


def test_the_report_is_self_contained_and_escapes_what_it_is_told(saved) -> None:
    found = audit_file(
        saved(PHashing(LSH(24), epsilon=1.0, calibration="paper", learned_from="public"), X),
        trials=20_000,
    )
    report = Report(
        title="<script>alert(1)</script>",
        verdicts=[found.verdict],
        cards=[("card", found.card)],
        figures=[
            Figure("three", "numbers", three_numbers([found.verdict])),
            Figure("g", "", gallery({"<b>a</b>": np.zeros((2, 4, 4))})),
        ],
    )
    page = report.to_html()
    assert "<script" not in page
    assert "<b>" not in page
    assert "http://" not in page.replace("http://www.w3.org/", "").replace(
        "http://purl.org/", ""
    ).replace("http://creativecommons.org/", "")
    assert 'src="http' not in page
    assert "data:image/png;base64," in page
    assert "1 of 1 published claims are REFUTED" in report.to_markdown()
    assert json.loads(report.to_json())["advice"] == report.advice()

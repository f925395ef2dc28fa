"""The verdicts on the five papers stand: what is claimed falls where it must, what is proved never does."""

from __future__ import annotations

import json
import math

import pytest

from blindsight.audit.table import COLUMNS, all_verdicts
from blindsight.audit.verdict import Verdict
from blindsight.privacy import Audited


@pytest.fixture(scope="module")
def table() -> list[Verdict]:
    return all_verdicts(seed=1)


def test_all_five_rooms_are_in_the_table(table: list[Verdict]) -> None:
    assert {verdict.room for verdict in table} == {"hashing", "federated", "metric", "sketching", "tagging"}


def test_no_proof_is_refuted(table: list[Verdict]) -> None:
    # 95% bounds on a fixed seed; the same code is held to 1e-6 in test_bounds.
    assert not [verdict.cells() for verdict in table if verdict.unsound]
    assert not [verdict.cells() for verdict in table if verdict.calibration == "proven" and verdict.refuted]


@pytest.mark.parametrize(
    "method",
    ["PHashing", "PITQ", "DPP-DML", "DPP-S", "P2-ML-GCN outputs", "P2-ML-GCN weights", "DPHE", "NegDL records"],
)
def test_the_published_claim_is_refuted(table: list[Verdict], method: str) -> None:
    rows = [verdict for verdict in table if verdict.method == method and verdict.calibration == "paper"]
    assert rows
    assert all(verdict.refuted for verdict in rows)
    assert all(verdict.advice for verdict in rows)


def test_words_are_only_refuted_and_not_refuted(table: list[Verdict]) -> None:
    assert {verdict.word for verdict in table} == {"REFUTED", "not refuted"}
    assert all(len(verdict.cells()) == len(COLUMNS) for verdict in table)
    json.dumps([verdict.to_dict() for verdict in table], allow_nan=False)


def test_a_verdict_against_a_proof_is_unsound() -> None:
    measured = Audited(epsilon=2.0, confidence=0.95, attack="x", trials=10)
    verdict = Verdict(
        room="hashing",
        method="m",
        setting="s",
        unit="record",
        calibration="proven",
        claimed=None,
        proven=1.0,
        audited=measured,
    )
    assert verdict.refuted
    assert verdict.unsound
    assert not Verdict(**{**vars(verdict), "proven": math.inf}).refuted

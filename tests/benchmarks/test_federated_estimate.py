"""The estimate of the pad's strength reproduces what others published, no size offered falls below
its mark, and the specification shows the result file.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.federated import estimate
from blindsight.federated.sums.pad.parameters import choose

ROOT = Path(__file__).parents[2]
CHECKS = [(name, attack) for name, row in estimate.PUBLISHED.items() for attack in row[4]]


@pytest.mark.parametrize(("name", "attack"), CHECKS)
def test_published_values_come_out(name: str, attack: str) -> None:
    """Dual attacks may come out cheaper than published, never dearer."""
    n, bits, sigma, samples, published = estimate.PUBLISHED[name]
    own = estimate._ATTACKS[attack](n, bits, sigma, samples=samples).gates
    below = 2.0 if attack.startswith("dual") else 0.3
    assert published[attack] - below <= own <= published[attack] + 0.3


def test_every_size_offered_costs_at_least_134_bits_of_gates_and_103_of_core_svp() -> None:
    for row in estimate.offered():
        assert row["gates"] >= 134, row
        assert row["core"] >= 103, row


@pytest.fixture(scope="module")
def result() -> dict:
    return json.loads((ROOT / estimate.RESULTS).read_text(encoding="utf-8"))


def test_the_result_file_is_what_the_script_computes(result: dict) -> None:
    for row in result["sizes"]:
        parameters = choose(row["users"], row["weights"])
        bits, n = math.log2(parameters.modulus), parameters.degree
        assert (n, math.ceil(bits)) == (row["degree"], row["log2_q"])
        for attack in ("usvp", "primal_hybrid", "dual"):
            own = estimate._ATTACKS[attack](n, bits, 3.2).gates
            assert own == pytest.approx(row["attacks"][attack]["gates"], abs=0.01)
    row = result["sizes"][3]  # the weakest at degree 4096
    bits = math.log2(choose(row["users"], row["weights"]).modulus)
    own = estimate.dual_hybrid(row["degree"], bits, 3.2).gates
    assert own == pytest.approx(row["attacks"]["dual_hybrid"]["gates"], abs=0.01)


def test_every_size_lies_below_the_standard_and_costs_128_bits_by_every_attack(
    result: dict,
) -> None:
    assert {row["degree"] for row in result["sizes"]} == {4096, 8192}
    for row in result["sizes"]:
        assert row["log2_q"] <= row["he_standard"] == estimate.HE_STANDARD[row["degree"]]
        assert min(attack["gates"] for attack in row["attacks"].values()) >= 128


def test_the_standards_own_sizes_are_priced_at_about_128_bits(result: dict) -> None:
    """A cross-check of all four attacks: the standard's sizes were chosen for 128 bits."""
    assert [row["n"] for row in result["he_standard"]] == [2048, 4096, 8192]
    for row in result["he_standard"]:
        prices = [row[attack] for attack in estimate._ATTACKS]
        assert 120 <= min(prices) <= 140, row


def test_the_specification_shows_the_result_file(result: dict) -> None:
    page = (ROOT / estimate.SPECIFICATION).read_text(encoding="utf-8")
    assert estimate.with_table(page, result) == page

"""The contract that every mechanism passes.

Statistical tests here draw a million values with fixed seeds and reject at 1e-7, so all of them
together raise a false alarm with a probability below 1e-6 even if the seeds are changed.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from blindsight.core.errors import BlindsightError, InvalidData
from blindsight.privacy import Cost, mechanisms
from blindsight.privacy.entropy import SystemEntropy
from blindsight.privacy.mechanisms import Gaussian, base
from contracts.mechanisms import CASES, Case

every = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
exact = pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.mechanism.sampler == "exact"],
    ids=lambda case: case.name,
)
REJECT = 1e-7


def _shares(case: Case, x: np.ndarray) -> np.ndarray:
    """The exact probability of every outcome or bin, and of all the rest."""
    if case.outcomes is not None:
        inner = np.exp(case.log_prob(case.outcomes, x))
    else:
        inner = np.array(
            [
                integrate.quad(
                    lambda v: math.exp(case.log_prob(case.lift(np.array([v])), x)[0]), low, high
                )[0]
                for low, high in zip(case.edges[:-1], case.edges[1:], strict=True)
            ]
        )
    return np.append(inner, max(0.0, 1 - inner.sum()))


def _counts(case: Case, drawn: np.ndarray) -> np.ndarray:
    if case.outcomes is None:
        inner = np.histogram(case.reduce(drawn), bins=case.edges)[0]
    else:
        listed, rows = (
            np.round(x.reshape(len(x), -1).astype(float), 9) for x in (case.outcomes, drawn)
        )
        # Every row to one number, whose digits are its values' ranks among the outcomes' values.
        number, place, known = (
            np.zeros(len(listed), int),
            np.zeros(len(rows), int),
            np.ones(len(rows), bool),
        )
        for outcome, value in zip(listed.T, rows.T, strict=True):
            levels, rank = np.unique(outcome, return_inverse=True)
            found = np.searchsorted(levels, value).clip(max=len(levels) - 1)
            known &= levels[found] == value
            number, place = number * len(levels) + rank, place * len(levels) + found
        inner = np.bincount(place[known], minlength=number.max() + 1)[number]
    return np.append(inner, len(drawn) - inner.sum())


def test_every_mechanism_is_here() -> None:
    """Every mechanism that files can name, those of the rooms too."""
    released = {
        name for name in mechanisms.__all__ if hasattr(getattr(mechanisms, name), "release")
    } - {"Mechanism"}
    here = {case.make.__name__ for case in CASES}
    registered = {
        name for name, known in base._KNOWN.items() if known.__module__.startswith("blindsight.")
    }
    assert released <= registered == here


@every
def test_samples_match_the_exact_distribution(case: Case) -> None:
    drawn = case.draw(1_000_000, np.random.default_rng(20_261))
    expected, seen = _shares(case, case.x) * 1e6, _counts(case, drawn)
    # Cells too rare for the chi-square approximation are judged together.
    rare = expected < 20
    expected = np.append(expected[~rare], expected[rare].sum())
    seen = np.append(seen[~rare], seen[rare].sum())
    kept = expected > 0
    assert seen[~kept].sum() == 0
    assert (
        stats.chisquare(seen[kept], expected[kept] * seen[kept].sum() / expected[kept].sum()).pvalue
        > REJECT
    )


@exact
def test_exact_samplers_match_with_the_operating_systems_dice(case: Case) -> None:
    # Not seeded: the false-alarm rate is REJECT each.
    expected = _shares(case, case.x) * 100_000
    seen = _counts(case, case.draw(100_000, SystemEntropy()))
    keep = expected >= 20
    expected, seen = (
        np.append(expected[keep], expected[~keep].sum()),
        np.append(seen[keep], seen[~keep].sum()),
    )
    kept = expected > 5
    assert (
        stats.chisquare(seen[kept], expected[kept] * seen[kept].sum() / expected[kept].sum()).pvalue
        > REJECT
    )


@every
def test_neighbours_differ_by_at_most_epsilon(case: Case) -> None:
    cost = case.mechanism.cost
    outcomes = case.outcomes
    if outcomes is None:
        low, high = case.edges[[0, -1]]
        outcomes = case.lift(np.linspace(low, high, 4801))
    here, there = case.log_prob(outcomes, case.x), case.log_prob(outcomes, case.neighbour)
    if cost.delta == 0:
        assert np.abs(here - there).max() <= cost.epsilon * (1 + 1e-12) + 1e-12
        if case.tight:  # the bound is met: the stated cost is not a loose one
            assert np.abs(here - there).max() > 0.99 * cost.epsilon
    elif case.outcomes is not None:
        spill = np.maximum(0, np.exp(here) - math.exp(cost.epsilon) * np.exp(there)).sum()
        assert spill <= cost.delta


def test_gaussian_curve_equals_an_independent_integral() -> None:
    mechanism = Gaussian(sigma=1.5, sensitivity=1.0, delta=1e-3, unit="record")
    epsilon = mechanism.cost.epsilon
    with mpmath.workdps(40):
        sigma, e = mpmath.mpf(1.5), mpmath.mpf(epsilon)
        # The likelihood ratio exceeds e^epsilon below this point; the spill there is delta.
        cut = mpmath.mpf(1) / 2 - e * sigma**2
        delta = mpmath.ncdf(cut / sigma) - mpmath.exp(e) * mpmath.ncdf((cut - 1) / sigma)
    assert float(delta) == pytest.approx(1e-3, rel=1e-9)
    assert float(delta) <= 1e-3 * (1 + 1e-12)


@every
def test_shape_and_dtype_are_kept(case: Case) -> None:
    rng = np.random.default_rng(0)
    for shape in ((), (4,), (2, 3)):
        x = np.broadcast_to(case.x, (*shape, *case.x.shape)).copy()
        released = case.mechanism.release(x, rng=rng)
        assert released.shape[: len(shape)] == shape
        if case.name not in {"subset", "top-k"}:
            assert released.shape == x.shape
            assert released.dtype == x.dtype
    if case.x.dtype.kind == "f" and case.name != "top-k":
        assert case.mechanism.release(case.x.astype(np.float32), rng=rng).dtype == np.float32


@every
def test_an_empty_release_is_empty(case: Case) -> None:
    assert len(case.draw(0, np.random.default_rng(0))) == 0


@every
def test_dice_come_only_from_the_argument(case: Case) -> None:
    before = np.random.get_state()[1].copy()  # noqa: NPY002  (the global state must stay untouched)
    first, second = (case.draw(50, np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(case.draw(50, np.random.default_rng(4)), first)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    with pytest.raises(TypeError):
        case.mechanism.release(case.x)


@every
def test_the_input_is_left_as_it_was(case: Case) -> None:
    x = np.repeat(case.x[None], 5, axis=0)
    copy = x.copy()
    case.mechanism.release(x, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(x, copy)


@every
def test_mechanisms_are_frozen_values(case: Case) -> None:
    assert case.mechanism == case.mechanism
    assert hash(case.mechanism) == hash(case.mechanism)
    with pytest.raises(dataclasses.FrozenInstanceError):
        case.mechanism.unit = "user"
    assert isinstance(case.mechanism.cost, Cost)


@every
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, True, "1", None], ids=str)
def test_bad_parameters_are_refused(case: Case, bad: Any) -> None:
    for name, value in case.parameters.items():
        if isinstance(value, str) or (name == "size" and bad is None):
            continue
        with pytest.raises(BlindsightError, match=name):
            case.make(**{**case.parameters, name: bad})
    with pytest.raises(BlindsightError):
        case.make(**{**case.parameters, "unit": bad})


@every
def test_zero_parameters_are_refused(case: Case) -> None:
    for name, value in case.parameters.items():
        # Never flipping is a mechanism, at infinite cost; a vector on the grid already has nothing
        # to round.
        if isinstance(value, str) or name in {"beta", "dimensions"}:
            continue
        with pytest.raises(BlindsightError, match=name):
            case.make(**{**case.parameters, name: 0})


@every
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "text"], ids=str)
def test_bad_values_are_refused_and_not_repeated(case: Case, bad: Any) -> None:
    x = np.array([bad] * case.x.size)
    with pytest.raises(BlindsightError):
        case.mechanism.release(x, rng=np.random.default_rng(0))


@every
def test_json_names_a_mechanism_and_gives_it_back(case: Case) -> None:
    fields = json.loads(json.dumps(mechanisms.to_fields(case.mechanism)))
    assert mechanisms.from_fields(fields) == case.mechanism
    for hostile in (
        {**fields, "type": "Nothing"},
        {**fields, "evil": 1},
        {"type": fields["type"]},
        [],
        None,
        "x",
    ):
        with pytest.raises(InvalidData):
            mechanisms.from_fields(hostile)


@every
def test_any_value_can_be_projected_into_the_domain(case: Case) -> None:
    x = np.repeat(case.x[None], 3, axis=0)
    np.testing.assert_array_equal(case.mechanism.domain.project(x), x)
    if case.x.dtype.kind == "f":
        wild = np.array([np.nan, np.inf, -1e300])[: max(1, case.x.size)]
        inside = case.mechanism.domain.project(np.resize(wild, case.x.shape))
        assert np.isfinite(case.mechanism.release(inside, rng=np.random.default_rng(0))).all()


@every
def test_the_worst_pair_is_a_pair_of_neighbours_and_meets_the_cost(case: Case) -> None:
    mechanism = case.mechanism
    one, other = mechanism.worst_pair()
    assert mechanism.domain.distance(one, other) <= mechanism.domain.reach * (1 + 1e-12)
    assert mechanism.domain.distance(one, one) == 0
    if mechanism.cost.delta == 0:
        drawn = mechanism.release(np.repeat(one[None], 4000, axis=0), rng=np.random.default_rng(1))
        gain = mechanism.log_prob(drawn, np.broadcast_to(one, (4000, *one.shape)))
        loss = mechanism.log_prob(drawn, np.broadcast_to(other, (4000, *one.shape)))
        ratio = np.abs((gain - loss).reshape(4000, -1).sum(axis=1)).max()
        assert ratio <= mechanism.cost.epsilon * (1 + 1e-9)
        # Top-k's bound over ordered lists is not met by any one pair of few scores.
        assert ratio > (0.2 if case.name == "top-k" else 0.9) * mechanism.cost.epsilon


@pytest.mark.parametrize("epsilon", [0.1, 8.0, 31.0, 40.9, 60.0, 500.0])
@pytest.mark.parametrize("k", [2, 414, 86_000])
def test_cells_are_never_told_more_truly_than_epsilon_allows(epsilon: float, k: int) -> None:
    """The drawn threshold itself, against the closed form in 200 digits."""
    from blindsight.privacy.mechanisms.kary import lie_threshold

    with mpmath.workdps(200):
        lie = mpmath.mpf(lie_threshold(epsilon, k - 1)) / mpmath.mpf(2) ** 128
        spent = mpmath.log((1 - lie) / (lie / (k - 1)))
        assert spent <= mpmath.mpf(epsilon)
        assert spent > min(mpmath.mpf(epsilon), 80) * (1 - mpmath.mpf(10) ** -6)

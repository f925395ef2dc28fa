"""The opened key must tell nothing but the sum: attacks on the digits in which the tag travels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from blindsight.federated.pad import tag
from blindsight.federated.protocol import rules

DIMENSION = 40
TRIALS = 20


@pytest.fixture
def opened_digits(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The digit sums that the aggregator reads from every opened key."""
    seen: list[np.ndarray] = []
    original = rules.from_key

    def spy(sums: np.ndarray, contributors: int) -> tuple[np.ndarray, int]:
        seen.append(sums[-tag.DIGITS :].copy())
        return original(sums, contributors)

    monkeypatch.setattr(rules, "from_key", spy)
    return seen


@pytest.mark.parametrize("holders", [None, (3, 5)])
def test_aggregator_cannot_tell_equal_updates_from_different_ones(
    start: Callable, opened_digits: list[np.ndarray], holders: tuple[int, int] | None
) -> None:
    """Three equal updates have three equal tags, so every sum of unmasked digits is divisible by 3.

    With masked digits all sums are divisible by 3 with probability 3^-24 per trial.
    """
    middle = np.full(DIMENSION, 0.25)
    equal = start(users=3, dimension=DIMENSION, updates=[middle] * 3, holders=holders)
    guesses = 0
    for trial in range(TRIALS):
        if trial:
            equal.again(trial + 1)
        equal.deliver()
        equal.finish()
        guesses += bool((opened_digits[-1] % 3 == 0).all())
    assert guesses == 0


def test_colluding_user_cannot_single_out_an_update_among_candidates(
    start: Callable, opened_digits: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """User 3 subtracts its own digits and tries 64 pairs of updates with the observed total.

    Whoever knows the tag key can compute each candidate's tags and their plain digits. With masked
    digits a pair matches by chance with probability below 2^-100 per trial.
    """
    sent: list[np.ndarray] = []
    original = rules.to_key
    monkeypatch.setattr(rules, "to_key", lambda s, t: sent.append(original(s, t)) or sent[-1])
    rng = np.random.default_rng(0)
    started = start(users=3, dimension=DIMENSION, holders=(3, 5))
    seed = started.simulation.users[1].enrolment.tag_seed
    code, half = started.simulation.settings.code, 1 << (started.simulation.settings.bits - 1)
    places = range(tag.DIGITS)

    def plain_digits(steps: np.ndarray, context: bytes) -> np.ndarray:
        value = tag.tag(seed, context, (steps + half).astype(np.uint64))
        return np.array([value >> (tag.DIGIT_BITS * i) & 127 for i in places])

    matches = 0
    for trial in range(TRIALS):
        pair = rng.integers(-1000, 1000, (2, DIMENSION))
        shifts = [np.zeros(DIMENSION, dtype=np.int64), *rng.integers(-900, 900, (63, DIMENSION))]
        started.updates[:] = [*(pair * code.grid), np.zeros(DIMENSION)]
        started.again(trial + 2)
        started.deliver()
        started.finish()
        context = started.header.context
        others = opened_digits[-1] - sent[-1][-tag.DIGITS :]
        for shift in shifts:
            digits = plain_digits(pair[0] + shift, context) + plain_digits(pair[1] - shift, context)
            matches += bool((digits == others).all())
    assert matches == 0

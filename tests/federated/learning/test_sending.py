"""What users send: sparse, repeatable, and nothing is lost between rounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.federated.fixedpoint import FixedPoint
from blindsight.federated.learning import Change, CommonMask, Federation, Participant, TopK, Weights
from blindsight.federated.learning.federation import from_name, top_k
from blindsight.federated.paper.algorithm import PaperSettings, PaperSimulation
from blindsight.federated.sums import Settings, Simulation

CODE = FixedPoint(bound=2.0, bits=16)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=50), st.integers(0, 60))
def test_top_k_keeps_the_largest(values: list[float], k: int) -> None:
    vector = np.array(values)
    chosen = top_k(vector, k)
    assert chosen.sum() == min(k, np.count_nonzero(vector))
    if chosen.any() and not chosen.all():
        assert np.abs(vector[chosen]).min() >= np.abs(vector[~chosen]).max()


def test_common_mask_is_common_and_fresh() -> None:
    mask = CommonMask(0.1, seed=5)
    first = mask.free(1000, 1)
    np.testing.assert_array_equal(first, CommonMask(0.1, seed=5).free(1000, 1))
    assert np.any(first != mask.free(1000, 2))
    assert np.any(first != CommonMask(0.1, seed=6).free(1000, 1))
    assert first.sum() == 100


def test_what_is_not_sent_is_sent_later() -> None:
    """With a constant local change and error feedback, everything arrives in the end, up to one
    rounding step.
    """
    rng = np.random.default_rng(0)
    change = rng.uniform(-0.1, 0.1, 40)
    calls = iter([change, *[np.zeros(40)] * 30])
    participant = Participant(lambda weights, round: weights + next(calls), TopK(0.1), CODE)
    arrived = np.zeros(40)
    for round in range(1, 21):
        sent, support = participant.step(np.zeros(40), round)
        assert support.sum() <= 4
        participant.settle(round, included=True, revealed=np.ones(40, dtype=bool))
        arrived += sent
    np.testing.assert_allclose(arrived, change, atol=CODE.grid)


def test_what_was_withheld_or_lost_comes_again() -> None:
    change = np.array([1.0, 0.5, 0.0, 0.0])
    for included, revealed in ((False, None), (True, np.zeros(4, dtype=bool))):
        calls = iter([change, np.zeros(4)])
        participant = Participant(
            lambda weights, round, calls=calls: weights + next(calls), TopK(0.5), CODE
        )
        first, _ = participant.step(np.zeros(4), 1)
        participant.settle(1, included=included, revealed=revealed)
        again, _ = participant.step(np.zeros(4), 2)
        np.testing.assert_allclose(again, first, atol=CODE.grid)


def test_sent_values_fit_the_fixed_point() -> None:
    participant = Participant(lambda weights, round: np.array([9.0, -9.0, 0.1]), Weights(), CODE)
    sent, support = participant.step(np.zeros(3), 1)
    assert np.abs(sent).max() <= CODE.bound
    np.testing.assert_array_equal(CODE.decode(CODE.encode(sent)), sent)
    assert support.all()


@pytest.mark.parametrize(
    "sending", [Change(), Weights(), TopK(0.5), CommonMask(0.5, 1)], ids=lambda s: type(s).__name__
)
@pytest.mark.parametrize("mode", ["pad", "paper"])
def test_encrypted_rounds_equal_plain_rounds(sending, mode: str, small_key) -> None:
    """Any vector of weights: here users who pull towards points of their own."""
    points = np.random.default_rng(0).uniform(-1, 1, (4, 30)).round(2)
    points[np.abs(points) < 0.3] = 0

    def local(point: np.ndarray):
        return lambda weights, round, free=None: np.where(
            True if free is None else free, point, weights
        )

    models = []
    for encrypt in (True, False):
        simulation: Simulation | PaperSimulation = Simulation(
            Settings(dimension=30, users=4, bound=2.0), encrypt=encrypt
        )
        if mode == "paper":
            agreed = PaperSettings(dimension=30, users=4, bound=2.0)
            simulation = PaperSimulation(agreed, key=small_key, encrypt=encrypt)
        federation = Federation(
            simulation,
            {n + 1: local(p) for n, p in enumerate(points)},
            initial=np.zeros(30),
            sending=sending,
        )
        log = federation.run(3)
        models.append(federation.weights)
        assert [entry.users for entry in log] == [4, 4, 4]
    np.testing.assert_array_equal(*models)


def test_whole_changes_average_to_the_mean(small_key) -> None:
    points = np.random.default_rng(0).uniform(-1, 1, (5, 20))
    simulation = Simulation(Settings(dimension=20, users=5, bound=2.0), encrypt=False)
    federation = Federation(
        simulation,
        {n + 1: (lambda weights, round, p=p: p) for n, p in enumerate(points)},
        initial=np.zeros(20),
    )
    federation.run(2)
    np.testing.assert_allclose(
        federation.weights, points.mean(axis=0), atol=3 * simulation.settings.code.grid
    )


def test_a_dropout_does_not_stop_a_round(small_key) -> None:
    simulation = Simulation(Settings(dimension=4, users=4, bound=2.0))
    federation = Federation(
        simulation,
        {n: (lambda weights, round, n=n: np.full(4, n / 10)) for n in range(1, 5)},
        initial=np.zeros(4),
    )
    entry = federation.round(dropouts=[4])
    assert entry.users == 3
    np.testing.assert_allclose(federation.weights, 0.2, atol=1e-3)


def test_mistakes_are_refused(small_key) -> None:
    with pytest.raises(InvalidParameter, match="send"):
        from_name("everything", sparsity=None)
    with pytest.raises(InvalidParameter, match="share"):
        TopK(0.0)
    with pytest.raises(InvalidData, match="local step"):
        Participant(lambda weights, round: np.zeros(3), Change(), CODE).step(np.zeros(4), 1)

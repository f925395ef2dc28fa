"""Algorithm 1 to the letter: against a naive transcription, step sizes, sensitivities and noise
scales.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from blindsight.metric import Contrastive, RowNoise, Trace, algorithm1, step_sizes

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 6))
X /= np.abs(X).sum(axis=1, keepdims=True)
PAIRS = RNG.integers(0, 40, (30, 2))
FAR = RNG.random(30) < 0.5
DX = X[PAIRS[:, 0]] - X[PAIRS[:, 1]]
LOSS = Contrastive(DX, FAR, margin=0.7)
START = RNG.normal(size=(3, 6))


def batches():
    return [np.arange(0, 15), np.arange(15, 30)]


def learn(**changes):
    settings = {
        "n_components": 3,
        "lipschitz": 0.5,
        "kappa": 4,
        "epsilon": 2.0,
        "noise": RowNoise(),
        "rng": np.random.default_rng(1),
        "start": START,
    }
    epochs = changes.pop("epochs", 2)
    return algorithm1(LOSS, [batches()] * epochs, **{**settings, **changes})


def transcription(*, h, epochs, reduction, kappa, epsilon, rule):
    """The paper's lines 1 to 14, one pair and one row at a time, without noise; returns W and the
    Laplace scales.
    """
    W, eta, tau, scales = START.copy(), 1.0, 0, []
    for _ in range(epochs):
        for batch in batches():
            tau += 1
            eta = eta / math.sqrt(tau) if rule == "compound" else 1 / math.sqrt(tau)
            distances = [np.linalg.norm(W @ DX[j]) for j in batch]
            new = W.copy()
            for r in range(len(W)):
                clipped = []
                for j, distance in zip(batch, distances, strict=True):
                    product = (W[r] @ DX[j]) * DX[j]
                    if FAR[j]:
                        product = (
                            product * (distance - 0.7) / distance if distance < 0.7 else 0 * product
                        )
                    clipped.append(product / max(1, np.abs(product).sum() / h))
                peak = max(np.abs(g).sum() for g in clipped)
                other = min(h, max(4 * np.abs(W[r]).sum(), 2 * 0.7 * math.sqrt(len(W))))
                width = (peak + other if reduction else 2 * h) / len(batch)
                scales.append(kappa * width / (epsilon / epochs))
                new[r] = W[r] - eta * np.mean(clipped, axis=0)
            W = new
    return W, np.array(scales).reshape(-1, len(START))


@pytest.mark.parametrize("rule", ["compound", "root"])
@pytest.mark.parametrize("reduction", [False, True])
def test_the_algorithm_equals_its_transcription_when_the_budget_is_endless(rule, reduction):
    expected, _ = transcription(
        h=0.5, epochs=2, reduction=reduction, kappa=1, epsilon=1e12, rule=rule
    )
    found = learn(epsilon=1e12, kappa=1, noise=RowNoise(reduced=reduction), rule=rule)
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_the_sensitivity_of_the_first_step_is_that_of_the_theorems():
    for reduction in (False, True):
        trace = Trace()
        learn(trace=trace, noise=RowNoise(reduced=reduction), epochs=1)
        _, scales = transcription(
            h=0.5, epochs=1, reduction=reduction, kappa=4, epsilon=2.0, rule="compound"
        )
        np.testing.assert_allclose(trace.sensitivity[0] / 2.0, scales[0])


def test_reduction_never_raises_the_sensitivity():
    plain, reduced = Trace(), Trace()
    learn(trace=plain)
    learn(trace=reduced, noise=RowNoise(reduced=True))
    assert all(
        (s <= p + 1e-12).all() for s, p in zip(reduced.sensitivity, plain.sensitivity, strict=True)
    )
    assert np.allclose(plain.sensitivity[0], 4 * 2 * 0.5 / 15)


@pytest.mark.parametrize("mechanism", ["laplace", "scdf", "duchi", "gaussian"])
def test_noise_has_no_bias_and_the_stated_spread(mechanism):
    loss = Contrastive(
        np.zeros((10, 50)), np.zeros(10, dtype=bool), margin=1.0
    )  # no gradient: noise alone
    start = np.zeros((20, 50))
    noise = -algorithm1(
        loss,
        [[np.arange(10)]],
        n_components=20,
        lipschitz=0.5,
        kappa=3,
        rng=np.random.default_rng(3),
        noise=RowNoise(family=mechanism),
        start=start,
    )
    sensitivity = 3 * 2 * 0.5 / 10
    spread = {
        "laplace": math.sqrt(2) * sensitivity,
        "gaussian": math.sqrt(2 * math.log(1.25e5)) * sensitivity,
        "scdf": None,
        "duchi": None,
    }[mechanism]
    if spread is not None:
        assert noise.std() == pytest.approx(spread, rel=0.15)
    assert abs(noise.mean()) < 6 * noise.std() / math.sqrt(noise.size)


def test_the_two_readings_of_the_step_size():
    tau = np.arange(1, 8)
    np.testing.assert_allclose(step_sizes("root", 7), 1 / np.sqrt(tau))
    np.testing.assert_allclose(
        step_sizes("compound", 7), [1 / math.sqrt(math.factorial(t)) for t in tau]
    )


def test_the_compounding_step_stops_learning():
    assert step_sizes("compound", 60).sum() < 2.5 < 10 < step_sizes("root", 60).sum()


def test_the_objective_is_recorded_before_each_step():
    trace = Trace()
    learn(trace=trace, noise=None, rule="root")
    assert len(trace.objective) == 4
    assert trace.objective[0] == pytest.approx(LOSS.mean(START))
    assert trace.objective[-1] < trace.objective[0]

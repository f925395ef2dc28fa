"""The replay sees what a black box would need a million trials for, and leaves sound pipelines alone."""

from __future__ import annotations

import numpy as np
import pytest

from blindsight.audit.replay import refuses_nan, replay
from blindsight.privacy import Cost
from blindsight.privacy.clipping import clip_norm
from blindsight.privacy.mechanisms import Gaussian, Laplace

DATA = np.random.default_rng(0).standard_normal((50, 4))
NEIGHBOUR = np.concatenate([DATA[:-1], 100 * DATA[-1:]])


def _mean(x, rng, ledger):
    """A sound private mean: clipped, charged, noised."""
    noise = Laplace.calibrate(1.0, sensitivity=2.0, unit="record")
    total = clip_norm(x, 1.0, order=1).sum(axis=0)
    ledger.charge(noise.cost, what="mean")
    return noise.release(total, rng=rng) / len(x)


def _steps(x, rng, ledger):
    """Ten Gaussian steps, charged together."""
    noise = Gaussian(sigma=8.0, sensitivity=2.0, delta=1e-6, unit="record")
    joint = Gaussian(sigma=8.0, sensitivity=2.0 * 10**0.5, delta=1e-5, unit="record")
    ledger.charge(joint.cost, what="steps")
    return sum(noise.release(clip_norm(x, 1.0).sum(axis=0), rng=rng) for _ in range(10))


@pytest.mark.parametrize("run", [_mean, _steps])
def test_sound_pipelines_are_not_refuted(run) -> None:
    findings = replay(run, DATA, NEIGHBOUR)
    assert str(findings) == "not refuted"
    assert findings.releases >= 1
    assert refuses_nan(run, DATA)


def test_an_escape_past_the_mechanism_is_found() -> None:
    def leaky(x, rng, ledger):
        return np.append(_mean(x, rng, ledger), x[-1, 0])

    assert "beyond what the mechanisms released" in str(replay(leaky, DATA, NEIGHBOUR))


def test_mechanisms_are_whole_again_afterwards() -> None:
    before = Laplace.release
    with pytest.raises(ZeroDivisionError):
        replay(lambda x, rng, ledger: 1 / 0, DATA, NEIGHBOUR)
    assert Laplace.release is before


def test_too_small_a_charge_is_found() -> None:
    def cheap(x, rng, ledger):
        noise = Laplace.calibrate(1.0, sensitivity=2.0, unit="record")
        ledger.charge(Cost(epsilon=1.0, unit="record"), what="two releases at the price of one")
        total = clip_norm(x, 1.0, order=1).sum(axis=0)
        return noise.release(total, rng=rng) + noise.release(total, rng=rng)

    assert "the ledger was told 1" in str(replay(cheap, DATA, NEIGHBOUR))

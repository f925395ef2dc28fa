"""Feature statistics and heads are audited like everything that opens a door."""

from __future__ import annotations

import numpy as np
import pytest

from blindsight.audit import audit, audit_file
from blindsight.sketching import FeatureBasis, FeatureStatistics, PrivateHead

X = np.random.default_rng(0).random((60, 9))
NAMES = np.arange(60) % 2
BASIS = FeatureBasis.learn(np.random.default_rng(1).random((40, 9)), width=5)
SENDERS = {
    "statistics": lambda: FeatureStatistics(
        2.0, classes=("0", "1"), basis=BASIS, refuse=False, random_state=0
    ),
    "head": lambda: PrivateHead(2.0, classes=("0", "1"), basis=BASIS, steps=4, random_state=0),
}


@pytest.mark.parametrize("kind", SENDERS)
def test_a_sender_and_its_file_are_attacked_and_hold(kind, tmp_path) -> None:
    sender = SENDERS[kind]().fit(X, NAMES)
    sender.save(tmp_path / "sent")
    for found in (audit(sender, trials=20_000), audit_file(tmp_path / "sent", trials=20_000)):
        assert found.verdict is not None and not found.verdict.refuted
        assert found.card.audited is not None and found.card.audited.epsilon <= 2.0


def test_statistics_with_a_tenth_of_their_noise_are_refuted(monkeypatch) -> None:
    from blindsight.privacy.mechanisms import DiscreteGaussian

    honest = DiscreteGaussian.release
    monkeypatch.setattr(
        DiscreteGaussian,
        "release",
        lambda self, x, *, rng: x + (honest(self, x, rng=rng) - x) / 10,
    )
    found = audit(SENDERS["statistics"]().fit(X, NAMES), trials=20_000)
    assert found.verdict is not None and found.verdict.refuted

"""FederatedClassifier: as accurate as training on everything, logged by round, honest about its
guarantee.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.federated.baselines import federated_averaging, prr10, ra12
from blindsight.core.errors import InvalidData, InvalidParameter, NotProven
from blindsight.federated import (
    SGD,
    CommonMask,
    FederatedClassifier,
    Pad,
    Paper,
    Proximal,
    SumNoise,
    TopK,
    Weights,
)
from blindsight.federated.agreement import SUM
from blindsight.federated.learning import LocalTrainer, linear
from blindsight.federated.sums.messages import contribution_bytes
from blindsight.federated.sums.settings import Settings
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.door import listening
from blindsight.privacy.mechanisms.gaussian import width


def fitted(digits, **params) -> FederatedClassifier:
    owners = np.arange(len(digits["X"])) % 5
    return FederatedClassifier(**{"encrypt": False, "random_state": 0, **params}).fit(
        digits["X"],
        digits["y"],
        owners,
        public=(digits["public"], digits["public_y"]),
        test=(digits["test"], digits["test_y"]),
    )


@pytest.mark.parametrize(
    ("params", "least"),
    [
        ({}, 0.88),
        ({"learner": SGD()}, 0.88),
        ({"learner": Proximal(loss="logistic", strength=1e-4, iterations=40)}, 0.86),
        ({"send": Weights(0.7), "sums": Paper()}, 0.84),
        ({"send": TopK(0.2), "sums": Paper()}, 0.84),
        ({"send": CommonMask(0.2)}, 0.83),
    ],
    ids=["change", "sgd", "logistic", "paper", "top-k", "mask"],
)
def test_federated_training_comes_near_central_training(digits, params, least: float) -> None:
    model = fitted(digits, **params)
    assert model.score(digits["test"], digits["test_y"]) >= least
    assert model.rounds_[-1].accuracy == pytest.approx(
        model.score(digits["test"], digits["test_y"])
    )


def test_encryption_changes_nothing(digits) -> None:
    plain, encrypted = fitted(digits, rounds=2), fitted(digits, rounds=2, encrypt=True)
    np.testing.assert_array_equal(plain.coef_, encrypted.coef_)
    assert [entry.bytes for entry in plain.rounds_] == [entry.bytes for entry in encrypted.rounds_]


def test_every_round_is_logged(digits) -> None:
    model = fitted(digits, send=Weights(0.9), sums=Paper())
    assert [entry.round for entry in model.rounds_] == [1, 2, 3]
    for entry in model.rounds_:
        assert entry.users == 5
        assert 0.9 <= entry.sparsity < 0.95
        assert entry.bytes > 0
        assert entry.seconds > 0


def test_a_common_mask_sends_fewer_bytes() -> None:
    agreed = Settings(dimension=200_000, users=5)
    assert contribution_bytes(agreed, 20_000) < contribution_bytes(agreed, 200_000) / 6


def test_without_noise_the_guarantee_says_so(digits, tmp_path) -> None:
    model = fitted(digits, rounds=1)
    assert math.isinf(model.guarantee_.epsilon)
    assert "exact sum" in model.disclosure_.card()
    ledger = Ledger(tmp_path / "ledger.db", dataset="digits")
    ledger.grant(Cost(epsilon=100, unit="user"))
    with pytest.raises(NotProven):
        FederatedClassifier(encrypt=False).fit(digits["X"], digits["y"], ledger=ledger)


def test_with_noise_users_and_records_are_covered(digits) -> None:
    model = FederatedClassifier(
        users=60,
        rounds=1,
        noise=SumNoise(epsilon=8.0, clip=0.5),
        encrypt=False,
        random_state=0,
        classes=range(10),
    ).fit(
        digits["X"],
        digits["y"],
        public=(digits["public"], digits["public_y"]),
        test=(digits["test"], digits["test_y"]),
    )
    assert model.guarantee_.epsilon <= 8.0
    assert model.guarantee_.unit == "user"
    assert [cost.unit for cost in model.guarantee_.also] == ["record"]
    assert model.guarantee_.simulation
    assert model.rounds_[0].accuracy > 0.5


def test_two_owners_are_too_few(digits) -> None:
    with pytest.raises(InvalidData, match="3 owners"):
        FederatedClassifier(encrypt=False).fit(
            digits["X"], digits["y"], np.arange(len(digits["X"])) % 2
        )
    with pytest.raises(InvalidData, match="owner per row"):
        FederatedClassifier(encrypt=False).fit(digits["X"], digits["y"], np.arange(4))


def test_noise_and_sparse_sending_exclude_each_other(digits) -> None:
    noise = SumNoise(epsilon=1.0)
    with pytest.raises(InvalidParameter, match="Change"):
        FederatedClassifier(encrypt=False, noise=noise, send=TopK(0.1)).fit(
            digits["X"], digits["y"]
        )
    with pytest.raises(InvalidParameter, match="Pad"):
        FederatedClassifier(encrypt=False, noise=noise, sums=Paper()).fit(digits["X"], digits["y"])


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"send": TopK(0.1)}, "needs sums=Paper"),
        ({"sums": Pad(clip=1.0), "noise": SumNoise(epsilon=1.0)}, "Pad.clip"),
        ({"sums": Pad(bits=16), "noise": SumNoise(epsilon=1.0)}, "leave them out"),
        ({"sums": "pad"}, "sums must be"),
        ({"learner": "sgd"}, "learner must be"),
        ({"send": "change"}, "send must be"),
        ({"noise": 1.0}, "noise must be"),
        ({"encrypt": "no"}, "encrypt"),
    ],
)
def test_nothing_that_is_given_is_ignored(digits, params, match: str) -> None:
    with pytest.raises(InvalidParameter, match=match):
        FederatedClassifier(**{"encrypt": False, **params}).fit(digits["X"], digits["y"])


def test_values_refuse_what_they_cannot_mean() -> None:
    for make in (
        lambda: SumNoise(epsilon=0),
        lambda: SumNoise(epsilon=1, delta=1),
        lambda: Pad(clip=0.0),
        lambda: Weights(1.0),
    ):
        with pytest.raises(InvalidParameter):
            make()


def test_a_saved_model_keeps_its_values(digits, tmp_path) -> None:
    model = fitted(
        digits, rounds=1, send=CommonMask(0.3), sums=Pad(holders=3), learner=SGD(epochs=1)
    )
    model.save(tmp_path / "model")
    loaded = FederatedClassifier.load(tmp_path / "model")
    for name in ("send", "sums", "learner", "noise", "rounds", "encrypt"):
        assert getattr(loaded, name) == getattr(model, name)
    np.testing.assert_array_equal(loaded.coef_, model.coef_)


@pytest.mark.parametrize("encrypt", [False, True])
def test_every_noisy_sum_passes_the_door(digits, encrypt: bool) -> None:
    """Also where each user draws its own share under encryption: the sum is released as the plan
    says, and priced.
    """

    class Listener:
        def __init__(self) -> None:
            self.passages: list = []

        def opened(self, door):
            return None

        def passing(self, passage):
            return None

        def passed(self, passage, released) -> None:
            self.passages.append((passage, released))

        def absent(self, n):
            return None

    listener = Listener()
    with listening(listener):
        model = FederatedClassifier(
            classes=range(10),
            rounds=2,
            noise=SumNoise(epsilon=50.0),
            encrypt=encrypt,
            random_state=0,
        ).fit(digits["X"][:100], digits["y"][:100])
    assert [passage.planned.what for passage, _ in listener.passages] == [SUM, SUM]
    [planned] = model.guarantee_.releases
    for passage, released in listener.passages:
        assert passage.planned is planned or passage.planned == planned
        noise = np.rint((released - passage.value) / planned.mechanism.step)
        # All five users' shares, of which the guarantee counts three.
        expected = np.sqrt(5) * width(planned.mechanism.levels)
        # A chi-squared of 650 degrees, where users draw for themselves: a false alarm in fewer than
        # 1e-7 runs.
        assert abs(np.std(noise) / expected - 1) < 6 / np.sqrt(2 * len(noise))


def _shares(digits) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(digits["X"][n::5], digits["y"][n::5]) for n in range(5)]


@pytest.mark.parametrize("baseline", [prr10, ra12])
def test_baselines_learn_when_privacy_is_loose_and_not_at_the_papers_epsilon(
    digits, baseline
) -> None:
    def accuracy(epsilon: float, calibration: str = "proven") -> tuple[float, float]:
        found = baseline(
            _shares(digits), classes=10, epsilon=epsilon, calibration=calibration, random_state=0
        )
        right = np.mean(linear.predicted(found.weights, digits["test"]) == digits["test_y"])
        return float(right), found.guarantee.epsilon

    loose, _ = accuracy(1e6)
    tight, proven = accuracy(0.2)
    _, really = accuracy(0.2, "paper")
    assert loose > 0.75
    assert tight < 0.4
    assert proven <= 0.2
    assert really > 1.0  # what counting one class at a time really costs


@pytest.mark.parametrize("baseline", [prr10, ra12])
def test_rows_left_long_cost_what_their_length_says(digits, baseline) -> None:
    def epsilon(calibration: str) -> float:
        return baseline(
            _shares(digits), classes=10, calibration=calibration, strength=1.0, random_state=0
        ).guarantee.epsilon

    assert epsilon("unclipped") > 10 * epsilon("paper") > 10 * epsilon("proven")


def test_plain_averaging_is_what_encryption_reproduces(digits) -> None:
    model = fitted(digits)
    scaled = [(model._scaled(X), y) for X, y in _shares(digits)]
    trainers = [LocalTrainer(X, y, 10, Proximal(strength=1e-3)) for X, y in scaled]
    start = model._start((digits["public"], digits["public_y"]), np.arange(10), 650)
    plain = linear.shaped(federated_averaging(trainers, start, rounds=3), 64)
    np.testing.assert_allclose(plain[:, :-1], model.coef_, atol=5e-4)

"""PHashing: what random flipping promises, by enumeration and closed form."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from blindsight.core import codes
from blindsight.core.codes import flip_kernel
from blindsight.core.errors import InvalidData, InvalidParameter, NotProven
from blindsight.hashing import ITQ, LSH, PHashing
from blindsight.privacy import Cost, Ledger, Vault
from blindsight.privacy.mechanisms import BitFlip

X = np.random.default_rng(0).normal(size=(200, 6))


def exact_epsilon(mechanism: BitFlip, n_bits: int, neighbours) -> float:
    """The largest log-ratio over all outputs and all neighbouring codes."""
    every = np.array(list(itertools.product((0, 1), repeat=n_bits)))
    log_prob = np.array([mechanism.log_prob(every, code).sum(axis=1) for code in every])
    worst = 0.0
    for a, b in itertools.permutations(range(len(every)), 2):
        if neighbours(every[a], every[b]):
            worst = max(worst, float((log_prob[a] - log_prob[b]).max()))
    return worst


@pytest.mark.parametrize("calibration", ["proven", "paper"])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
def test_epsilon_of_a_released_code_is_exact_by_enumerating_neighbours(calibration, epsilon):
    n_bits = 4
    for unit in ("bit", "record"):
        hasher = PHashing(
            LSH(n_bits), epsilon=epsilon, calibration=calibration, unit=unit, learned_from="public"
        ).fit(X)
        stated = {
            cost.unit: cost.epsilon for cost in (hasher.guarantee_.cost, *hasher.guarantee_.also)
        }
        per_record = exact_epsilon(hasher.mechanism_, n_bits, lambda a, b: True)
        per_bit = exact_epsilon(hasher.mechanism_, n_bits, lambda a, b: (a != b).sum() == 1)
        assert stated["record"] == pytest.approx(per_record, rel=1e-9)
        assert stated["bit"] == pytest.approx(per_bit, rel=1e-9)
        if calibration == "proven":
            assert stated[unit] <= epsilon
            assert stated[unit] == pytest.approx(epsilon, rel=1e-9)
        else:
            assert hasher.guarantee_.claimed == pytest.approx(epsilon)


def test_expected_squared_change_is_lemma_five():
    n, c, beta = 4000, 48, math.exp(-1)
    bits = np.random.default_rng(1).integers(0, 2, (n, c))
    released = BitFlip(beta=beta, n_bits=c).release(2 * bits - 1, rng=np.random.default_rng(2))
    change = np.square(released - (2 * bits - 1)).sum()
    deviation = 4 * math.sqrt(n * c * beta * (1 - beta))
    assert abs(change - 4 * beta * n * c) < 5 * deviation  # five deviations: below 1e-6


def test_lemma_seven_holds_and_is_looser_than_the_trivial_bound_for_many_records():
    """E|d - d'| exactly: of d differing bits Bin(d, beta) come to agree, of the others Bin(c - d,
    beta) to differ.
    """
    c, n = 16, 200
    for epsilon in (0.5, 1.0, 2.0, 4.0):
        beta = math.exp(-epsilon)
        moved = flip_kernel(c, min(beta, 0.5)) if beta <= 0.5 else flip_kernel(c, 1 - beta)[::-1]
        change = np.abs(np.arange(c + 1)[:, None] - np.arange(c + 1))
        worst = n * float((moved * change).sum(axis=1).max())
        assert worst <= n * c * beta + 1e-9  # one flip moves a distance by one
        lemma = n**1.5 * c * math.sqrt(beta)
        assert worst <= lemma
        assert (
            lemma >= n * c
        )  # no two distances differ by more than c: with n >= 1/beta the lemma says nothing


def test_algorithm_two_flips_the_codes_that_adsh_learned():
    from blindsight.hashing import ADSH

    y = np.arange(200) % 2
    rows = X + 4 * y[:, None]
    hasher = PHashing(
        ADSH(8, n_epochs=2, hidden=8), epsilon=40.0, calibration="paper", unit="bit", random_state=0
    )
    released = hasher.fit_transform(rows, y)
    assert np.array_equal(
        released, hasher.base_.database_codes_
    )  # beta = e^-40: U as it was learned
    assert len(np.unique(released, axis=0)) < 20  # and it is little more than the labels


def test_every_bit_is_flipped_with_probability_beta():
    bits = np.random.default_rng(1).integers(0, 2, (20_000, 11))
    released = BitFlip(beta=0.2, n_bits=11).release(bits, rng=np.random.default_rng(3))
    rate = (released != bits).mean(axis=0)
    assert np.abs(rate - 0.2).max() < 6 * math.sqrt(0.16 / len(bits))


def test_queries_are_plain_and_stored_codes_are_flipped():
    hasher = PHashing(
        ITQ(16, random_state=0), epsilon=1.0, random_state=1, learned_from="public"
    ).fit(X)
    plain, stored = hasher.query(X), hasher.transform(X)
    assert np.array_equal(plain, hasher.base_.transform(X))
    flipped = (codes.unpack(plain, 16) != codes.unpack(stored, 16)).mean()
    assert abs(flipped - hasher.mechanism_.beta) < 0.05


def test_beta_above_one_half_is_refused_under_proven_calibration_only():
    with pytest.raises(NotProven, match="complement"):
        PHashing(LSH(8), beta=0.6, learned_from="public").fit(X)
    assert (
        PHashing(LSH(8), beta=0.6, calibration="paper", learned_from="public")
        .fit(X)
        .mechanism_.beta
        == 0.6
    )
    assert (
        PHashing(LSH(8), epsilon=0.1, calibration="paper", learned_from="public")
        .fit(X)
        .mechanism_.beta
        > 0.5
    )
    assert PHashing(LSH(8), epsilon=0.1, learned_from="public").fit(X).mechanism_.beta < 0.5


def test_learning_from_the_protected_images_has_no_epsilon_per_record():
    hasher = PHashing(ITQ(8))
    hasher.fit_transform(X)
    assert math.isinf(hasher.guarantee_.epsilon)
    assert PHashing(ITQ(8)).fit(X).guarantee_ == hasher.guarantee_  # at once or one by one
    free = PHashing(LSH(8, center=False), epsilon=2.0)
    free.fit_transform(X)
    assert free.guarantee_.epsilon == pytest.approx(2.0)
    bit = PHashing(ITQ(8), epsilon=2.0, unit="bit", learned_from="private").fit(X).guarantee_
    assert bit.epsilon == pytest.approx(2.0)
    assert math.isinf(bit.also[0].epsilon)


def test_a_release_without_proof_is_not_charged_and_not_made(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db", dataset="ward")
    ledger.grant(Cost(epsilon=100, unit="record"))
    with pytest.raises(NotProven):
        PHashing(ITQ(8)).fit_transform(X, ledger=ledger)
    assert ledger.balance("record").spent.epsilon == 0


class Parity:
    """A user's own hasher: the same interface, no base class of ours."""

    def __init__(self, n_bits=3):
        self.n_bits = n_bits

    def get_params(self, deep=True):
        return {"n_bits": self.n_bits}

    def set_params(self, **params):
        return self

    def fit(self, X, y=None):
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X):
        return codes.pack(X[:, : self.n_bits] > 0)


def test_a_users_own_hasher_is_protected_too(tmp_path):
    hasher = PHashing(Parity(), epsilon=3.0, random_state=0, learned_from="public").fit(X)
    assert hasher.transform(X).shape == (200, 1)
    assert hasher.guarantee_.epsilon == pytest.approx(3.0)
    with pytest.raises(InvalidParameter, match="decision_function"):
        hasher.decision_function(X)
    with pytest.raises(InvalidParameter, match="own hashers"):
        hasher.save(tmp_path / "mine")


def test_a_base_that_gives_the_wrong_codes_is_refused():
    class Wide(Parity):
        def transform(self, X):
            return np.zeros((len(X), 9), dtype=np.uint8)

    with pytest.raises(InvalidData, match="bytes wide"):
        PHashing(Wide(), learned_from="public").fit(X).transform(X)


def test_each_release_draws_fresh_noise_without_a_seed():
    hasher = PHashing(LSH(64), epsilon=1.0, learned_from="public").fit(X)
    assert not np.array_equal(hasher.transform(X), hasher.transform(X))
    assert not hasher.guarantee_.simulation


@pytest.mark.parametrize(
    "bad", [{"epsilon": 0}, {"epsilon": -1.0}, {"unit": "pixel"}, {"calibration": "none"}]
)
def test_bad_parameters_are_named(bad):
    with pytest.raises(InvalidParameter, match=next(iter(bad))):
        PHashing(LSH(8), **bad, learned_from="public").fit(X)


def test_a_record_s_noise_can_depend_on_its_name_alone():
    hasher = PHashing(LSH(32), epsilon=8.0, random_state=3, learned_from="public").fit(X)
    names = [f"photo {i}" for i in range(len(X))]
    together = hasher.transform(X, names=names)
    np.testing.assert_array_equal(hasher.transform(X[5:6], names=names[5:6]), together[5:6])
    assert not np.array_equal(hasher.transform(X[5:6], names=["another"]), together[5:6])


def test_under_a_vault_the_same_release_is_paid_once_and_any_other_by_itself(tmp_path):
    vault, ledger = Vault.create(tmp_path / "vault"), Ledger(tmp_path / "ledger.db", dataset="ward")
    ledger.grant(Cost(epsilon=100, unit="record"))
    names = [vault.record_of(row.tobytes()) for row in X]

    def released(rows=X, names=names, seed=1, epsilon=8.0):
        noise = vault.source(names, about="features")
        base = LSH(8, center=False, random_state=seed)
        hasher = PHashing(base, epsilon=epsilon, random_state=noise).fit(rows)
        found = hasher.transform(rows, names=names, ledger=ledger)
        return found, ledger.balance("record").spent.epsilon

    first, spent = released()
    again, still = released()
    np.testing.assert_array_equal(first, again)
    assert spent == still == 8.0
    assert released(seed=2)[1] == 16.0  # another function of the same records
    assert released(names=names[::-1])[1] == 24.0  # the same records under other names: other noise
    assert released(X[:50], names[:50])[1] == 32.0  # not the release that was paid for
    assert released(epsilon=4.0)[1] == 36.0
    ledger.close()


def test_noise_by_name_is_refused_for_a_function_that_cannot_be_told_from_others():
    hasher = PHashing(Parity(), random_state=3).fit(X)
    with pytest.raises(InvalidParameter, match="cannot be distinguished from another"):
        hasher.transform(X, names=[str(i) for i in range(len(X))])

"""A release made twice from one vault is the same bytes, and another value is another release."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.hashing.guarantee import private_second_moment
from blindsight.privacy.accounting import Planned
from blindsight.privacy.door import FILLED, Door
from blindsight.privacy.guarantee import Cost, Guarantee
from blindsight.privacy.ledger import Ledger
from blindsight.privacy.mechanisms import DiscreteGaussian, Gaussian, PrivUnit
from blindsight.privacy.vault import Vault

EXACT = DiscreteGaussian.fine(
    sigma=2.0, sensitivity=1.0, dimensions=3, delta=1e-5, unit="record", neighbours="replace one"
)
FLOAT = Gaussian(sigma=2.0, sensitivity=1.0, delta=1e-5, unit="record", neighbours="replace one")
VALUE = np.array([0.25, -0.5, 0.125])


def released(vault, value=VALUE, *, release="r", mechanism=EXACT, ledger=None):
    plan = (Planned(what="sum", mechanism=mechanism),)
    guarantee = Guarantee(releases=plan, model="central", delta=1e-5, entropy="keyed")
    account = None if ledger is None else vault.account(ledger, release=release)
    source = vault.training_source(release)
    return Door(guarantee, what="a sum", ledger=account, random_state=source).release("sum", value)


@pytest.fixture
def vault(tmp_path):
    return Vault.create(tmp_path / "vault")


@pytest.mark.parametrize("mechanism", [EXACT, FLOAT], ids=["exact", "float"])
@pytest.mark.filterwarnings("ignore::blindsight.core.errors.UnchargedRelease")
def test_the_same_release_again_is_the_same_bytes(vault, mechanism):
    first = released(vault, mechanism=mechanism)
    again = released(Vault(vault.path), mechanism=mechanism)
    assert first.tobytes() == again.tobytes()
    assert first.tobytes() != released(vault, release="s", mechanism=mechanism).tobytes()


@pytest.mark.filterwarnings("ignore::blindsight.core.errors.UnchargedRelease")
def test_another_value_is_not_released_under_the_same_release(vault):
    released(vault)
    with pytest.raises(InvalidData, match="second release under one charge"):
        released(vault, np.nextafter(VALUE, 1))


@pytest.mark.filterwarnings("ignore::blindsight.core.errors.UnchargedRelease")
def test_no_noise_is_used_for_two_values(vault, tmp_path):
    """Where the vault forgot the first value, the second has noise of its own."""
    shutil.copytree(vault.path, tmp_path / "copy")
    other = VALUE + 0.0625
    first, second = released(vault), released(Vault(tmp_path / "copy"), other)
    # Two noises of sigma 2 that agree to 1e-3 in three coordinates: below 1e-10.
    assert not np.allclose(second - first, other - VALUE, atol=1e-3)


def test_the_release_is_charged_once_through_the_vault(vault, tmp_path):
    with Ledger(tmp_path / "ledger.db", dataset="ward") as ledger:
        ledger.grant(Cost(epsilon=50, delta=1e-3, unit="record"))
        first = released(vault, ledger=ledger)
        again = released(vault, ledger=ledger)
        charges = [entry for entry in ledger.entries() if entry.kind == "charge"]
    assert first.tobytes() == again.tobytes()
    assert len(charges) == 1 and charges[0].vault == vault.number


def test_a_key_without_a_value_gives_no_fresh_noise(vault):
    plan = (Planned(what="sum", mechanism=EXACT),)
    guarantee = Guarantee(releases=plan, model="central", delta=1e-5, entropy="keyed")
    with pytest.warns(UserWarning, match="without a ledger"):
        door = Door(guarantee, what="keyed", random_state=vault.source(["a"], about="f"))
    with pytest.raises(InvalidParameter, match="training_source"):
        door.release("sum", VALUE)


class _Seen:
    """Takes the place of a door, and keeps what it is given."""

    def release(self, what, value):
        self.value = np.asarray(value)
        return self.value

    total = release


def test_second_moments_leave_room_for_rounding():
    """Neighbours' sums differ by at most the stated sqrt(2), also where rows were float32."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((4000, 5)).astype(np.float32)
    rows /= np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    other = rows.copy()
    rows[7], other[7] = np.eye(5)[0], np.eye(5)[1]
    one, two = _Seen(), _Seen()
    private_second_moment(rows, one)
    private_second_moment(other, two)
    upper = np.triu_indices(5)
    full = np.zeros((5, 5))
    full[upper] = one.value - two.value
    assert np.linalg.norm(full + np.triu(full, 1).T) < np.sqrt(2) * (1 + FILLED) / 2
    exact = (rows.astype(np.float64).T @ rows.astype(np.float64))[upper]
    np.testing.assert_allclose(one.value, FILLED * exact, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dimensions", [2, 3])
def test_privunit_refuses_what_floating_point_cannot_draw(dimensions):
    with pytest.raises(InvalidParameter, match="too large for PrivUnit"):
        PrivUnit(epsilon=60, dimensions=dimensions, unit="record")
    noise = PrivUnit(epsilon=24, dimensions=dimensions, unit="record")
    one, other = noise.worst_pair()
    assert noise.log_prob(one, one) - noise.log_prob(one, other) <= 24 * (1 + 1e-6)

"""Packed sums equal plain sums, up to a thousand users at the extremes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.federated.fixedpoint import FixedPoint
from blindsight.federated.packing import TAG_BITS, Packing
from blindsight.federated.paillier import PrivateKey

quick = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(data=st.data())
@quick
def test_encrypted_packed_sums_equal_plain_sums_exactly(small_key: PrivateKey, data: st.DataObject) -> None:
    users = data.draw(st.sampled_from([1, 2, 3, 5, 7, 8, 100, 1000]))
    count = data.draw(st.sampled_from(["coordinate", "block"]))
    bits = data.draw(st.sampled_from([8, 16, 24]))
    dimension = data.draw(st.integers(1, 60))
    packing = Packing(plaintext_bits=small_key.public.plaintext_bits, value_bits=bits, users=users, count=count)
    largest = (1 << (bits - 1)) - 1
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    values = rng.choice([-largest, -1, 0, 1, largest], size=(min(users, 4), dimension))
    # A thousand users need not encrypt one by one: a user's ciphertext to the power m is m users who agree.
    times = rng.multinomial(users - len(values), np.ones(len(values)) / len(values)) + 1
    blocks = np.arange(packing.blocks(dimension))
    tags = rng.integers(0, 1 << TAG_BITS, size=(len(values), len(blocks)), dtype=np.uint64)
    totals = [1] * len(blocks)
    for value, tag, m in zip(values, tags, times, strict=True):
        plain = packing.pack(value, value != 0, tag, blocks)
        for i, c in enumerate(small_key.public.encrypt_many(plain, workers=1)):
            totals[i] = totals[i] * pow(c, int(m), small_key.public.modulus) % small_key.public.modulus
    found = packing.unpack(small_key.decrypt_many(totals, workers=1))
    sums = found.values.ravel()[:dimension] - users * (1 << (bits - 1))
    assert found.clean.all()
    np.testing.assert_array_equal(sums, (values * times[:, None]).sum(0))
    expected_counts = ((values != 0) * times[:, None]).sum(0) if count == "coordinate" else np.zeros(dimension)
    np.testing.assert_array_equal(found.counts.ravel()[:dimension], expected_counts)
    weighted = [sum(int(t) * int(m) for t, m in zip(tags[:, b], times, strict=True)) for b in blocks]
    assert [int(t) for t in found.tags] == [w % (1 << 64) for w in weighted]


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_thousand_users_at_the_extreme_do_not_carry(small_key: PrivateKey, sign: int) -> None:
    packing = Packing(plaintext_bits=small_key.public.plaintext_bits, value_bits=16, users=1000)
    values = np.full(packing.slots, sign * 32767)
    [plain] = packing.pack(values, values != 0, np.array([(1 << TAG_BITS) - 1], dtype=np.uint64), np.arange(1))
    found = packing.unpack([plain * 1000])
    assert plain * 1000 < small_key.public.plaintext_modulus
    assert found.clean.all()
    assert (found.values - 1000 * 32768 == sign * 32767 * 1000).all()
    assert (found.counts == 1000).all()


def test_only_chosen_blocks_are_packed_and_absent_coordinates_hold_zero() -> None:
    packing = Packing(plaintext_bits=511, value_bits=16, users=3)
    values = np.arange(1, 3 * packing.slots + 1)
    support = values % 2 == 0
    found = packing.unpack(packing.pack(values, support, np.array([9], dtype=np.uint64), np.array([1])))
    middle = values[packing.slots : 2 * packing.slots]
    np.testing.assert_array_equal(found.values[0] - 32768, np.where(middle % 2 == 0, middle, 0))
    np.testing.assert_array_equal(found.counts[0], middle % 2 == 0)


def test_table_2_vector_takes_at_most_six_bytes_a_weight() -> None:
    five = Packing(plaintext_bits=2047, value_bits=16, users=5)
    assert five.blocks(206_848) * 512 / 206_848 <= 6.0
    many = Packing(plaintext_bits=2047, value_bits=16, users=128, count="block")
    assert many.blocks(206_848) * 512 / 206_848 <= 6.0
    cubed = Packing(plaintext_bits=3 * 2048 - 1, value_bits=16, users=128, count="block")
    assert cubed.blocks(206_848) * 1024 / 206_848 <= 4.0


def test_layouts_that_cannot_hold_the_sum_are_refused() -> None:
    with pytest.raises(InvalidParameter):
        Packing(plaintext_bits=2047, value_bits=48, users=1000)
    with pytest.raises(InvalidParameter):
        Packing(plaintext_bits=64, value_bits=16, users=5)
    packing = Packing(plaintext_bits=511, value_bits=8, users=5)
    with pytest.raises(InvalidData):
        packing.pack(np.array([128]), np.array([True]), np.zeros(1, np.uint64), np.arange(1))


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=50), st.integers(4, 32))
def test_fixed_point_is_within_half_a_step_and_symmetric(values: list[float], bits: int) -> None:
    code = FixedPoint(bound=1.0, bits=bits)
    numbers = code.encode(values)
    assert np.abs(code.decode(numbers) - values).max() <= code.grid * (0.5 + 1e-6)
    np.testing.assert_array_equal(code.encode(-np.asarray(values)), -numbers)
    toward = code.encode(values, toward_zero=True)
    assert (np.abs(toward) * code.grid <= np.abs(values) + 1e-12).all()


@pytest.mark.parametrize("bad", [[1.001], [-2.0], [np.nan], [np.inf]])
def test_fixed_point_refuses_overflow(bad: list[float]) -> None:
    with pytest.raises(InvalidData):
        FixedPoint(bound=1.0).encode(bad)

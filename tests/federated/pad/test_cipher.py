"""Sums are exact at the extremes, strangers to each other without the secrets, and nonsense is
refused.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from blindsight.core.errors import InvalidParameter, ProtocolError
from blindsight.federated.sums.pad import (
    PadSum,
    Parameters,
    choose,
    cipher,
    new_secret,
    pad,
    parameters,
)
from blindsight.federated.sums.pad.sampler import Stream

HEADER = b"round 1"
SIZES = [(3, 50, 16), (5, 5000, 16), (100, 9000, 24), (10_000, 7000, 16), (65_536, 5000, 8)]


def padded(
    size: Parameters, values: np.ndarray, total: PadSum, header: bytes = HEADER
) -> np.ndarray:
    s = new_secret(size)
    total.add(pad(size, header, values, s))
    return s.astype(np.int64)


@pytest.mark.parametrize(("users", "dimension", "value_bits"), SIZES)
def test_the_sum_is_exact_at_the_extremes(users: int, dimension: int, value_bits: int) -> None:
    size = choose(users, dimension, value_bits)
    rng = np.random.default_rng(0)
    top = (1 << value_bits) - 1
    vectors = [rng.integers(0, top, dimension, endpoint=True).astype(np.uint64) for _ in range(2)]
    vectors += [np.full(dimension, top, dtype=np.uint64), np.zeros(dimension, dtype=np.uint64)]
    vectors = vectors[:users]
    total = PadSum(size, dimension)
    secrets = sum(padded(size, v, total) for v in vectors)
    np.testing.assert_array_equal(
        total.open(HEADER, secrets), sum(v.astype(np.int64) for v in vectors)
    )


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("users", [3, 4000])
def test_the_sum_is_exact_up_to_the_last_error_allowed(monkeypatch, users: int, sign: int) -> None:
    """All errors at once at the edge of E, by users whose errors are as large as they can be."""
    size = choose(users, 300)
    left = [sign * size.errors]

    def worst(count: int) -> np.ndarray:
        now = max(-63, min(63, left[0]))
        left[0] -= now
        return np.full(count, now, dtype=np.int8)

    monkeypatch.setattr(cipher, "secret", worst)
    total, secrets, expected = PadSum(size, 300), 0, 0
    top = np.full(300, (1 << 16) - 1, dtype=np.uint64)
    while left[0]:
        s = np.ones(size.degree, dtype=np.int8)
        total.add(pad(size, HEADER, top, s))
        secrets, expected = secrets + s.astype(np.int64), expected + top.astype(np.int64)
    np.testing.assert_array_equal(total.open(HEADER, secrets), expected)


def test_the_opening_agrees_with_whole_numbers() -> None:
    """An oracle of its own: residues to one number by the Chinese remainder theorem, then
    modulo t.
    """
    size = Parameters(degree=4096, users=100, value_bits=16, slots=4, prime_bits=(26, 26, 26, 25))
    q, t = size.modulus, 1 << size.plain_bits
    rng = np.random.default_rng(1)
    numbers = [
        int(rng.integers(-size.errors, size.errors)) * t + int(rng.integers(0, 1 << 62)) * 7
        for _ in range(64)
    ]
    numbers[:4] = [0, t - 1, (size.errors + 1) * t - 1, -size.errors * t]
    x = np.zeros((4, 4096), dtype=np.uint32)
    for i, p in enumerate(size.primes):
        x[i, :64] = [value % p for value in numbers]
    out = np.empty((4, 4096), dtype=np.int64)
    cipher._read(x, *cipher._chinese(size), size.slot_bits, out)
    for i, value in enumerate(numbers):
        lifted = (
            sum(int(x[k, i]) * (q // p) * pow(q // p, -1, p) for k, p in enumerate(size.primes)) % q
        )
        assert (lifted - value) % q == 0
        found = sum(int(out[j, i]) << (23 * j) for j in range(4))
        assert found == value % t


def test_without_the_secrets_a_sum_is_noise() -> None:
    size = choose(5, 3000)
    total = PadSum(size, 3000)
    values = np.zeros(3000, dtype=np.uint64)
    secrets = padded(size, values, total) + padded(size, values, total)
    for wrong in (secrets + np.eye(1, size.degree, 7, dtype=np.int64)[0], np.zeros_like(secrets)):
        opened = total.open(HEADER, wrong)
        assert np.mean(opened == 0) < 0.01
    assert np.mean(total.open(b"round 2", secrets) == 0) < 0.01  # a is the header's


def test_the_same_vector_is_never_padded_to_the_same_bytes() -> None:
    size = choose(5, 100)
    s, values = new_secret(size), np.zeros(100, dtype=np.uint64)
    assert pad(size, HEADER, values, s) != pad(size, HEADER, values, s)


def test_the_public_factor_is_below_its_prime_and_looks_uniform() -> None:
    size = choose(100, 206_848)
    for which, prime in enumerate(size.primes):
        a = np.concatenate(
            [cipher.public_block(Stream(bytes(16)), size, k, which) for k in range(20)]
        ).astype(np.int64)
        assert a.max() < prime
        counts = np.histogram(a, bins=64, range=(0, prime))[0]
        expected = len(a) / 64
        spread = math.log(2 * 64 / 1e-7)
        assert (np.abs(counts - expected) <= math.sqrt(2 * expected * spread) + spread).all()


def test_a_residue_that_is_none_is_refused_and_changes_nothing() -> None:
    size = choose(5, 100)
    total = PadSum(size, 100)
    values = np.arange(100, dtype=np.uint64)
    secrets = padded(size, values, total)
    good = pad(size, HEADER, values, new_secret(size))
    for bad in (good[:-1], good + b"x", b"", good[:-8] + b"\xff" * 8):
        with pytest.raises(ProtocolError, match="malformed"):
            total.add(bad)
    np.testing.assert_array_equal(total.open(HEADER, secrets), values)


def test_a_sum_survives_being_saved() -> None:
    size = choose(5, 100)
    total, again = PadSum(size, 100), PadSum(size, 100)
    values = np.arange(100, dtype=np.uint64)
    secrets = padded(size, values, total)
    again.read(total.write())
    np.testing.assert_array_equal(again.open(HEADER, secrets), values)
    with pytest.raises(ProtocolError):
        again.read(b"\xff" * len(total.write()))


@pytest.mark.parametrize("users", [3, 5, 100, 1000, 10_000, 65_536])
@pytest.mark.parametrize("dimension", [1, 8000, 206_848, 1 << 20, 10**8])
def test_every_size_offered_is_exact_and_within_the_caps(users: int, dimension: int) -> None:
    size = choose(users, dimension)
    assert (
        2 * (size.errors + 1) << size.plain_bits <= size.modulus < 1 << parameters.CAPS[size.degree]
    )
    assert users * ((1 << 16) - 1) < 1 << size.slot_bits
    assert len(set(size.primes)) == len(size.primes)
    assert all(p % (2 * size.degree) == 1 and p < 1 << 30 for p in size.primes)
    blocks = -(-dimension // size.block)
    longest = 1 << 20 if size.degree == 4096 else 1 << 28
    failure = (
        2
        * max(longest, blocks * size.degree)
        / size.slots
        * math.exp(-(size.errors**2) / (2 * users * 6.4**2))
    )
    assert failure <= 2**-39.9 or size.errors == 63 * users


def test_what_would_not_be_exact_or_safe_cannot_be_made() -> None:
    with pytest.raises(InvalidParameter, match="too small"):
        Parameters(degree=4096, users=5, value_bits=16, slots=5, prime_bits=(25, 25, 25, 25))
    with pytest.raises(InvalidParameter, match="too large"):
        Parameters(degree=4096, users=5, value_bits=16, slots=5, prime_bits=(27, 27, 27, 27))
    with pytest.raises(InvalidParameter, match="degree"):
        Parameters(degree=1024, users=5, value_bits=16, slots=1, prime_bits=(28,))

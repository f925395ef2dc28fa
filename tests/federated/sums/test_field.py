"""F_P against plain integers, shares against their promise."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from blindsight.federated.sums import field
from blindsight.federated.sums.field import KeySharing, P
from blindsight.federated.sums.pad.sampler import expand

EDGES = [0, 1, 2, (1 << 31) - 1, 1 << 31, (1 << 60) + 1, P - 2, P - 1]


def test_products_and_sums_equal_those_of_whole_numbers() -> None:
    rng = np.random.default_rng(0)
    numbers = EDGES + [int(x) % P for x in rng.integers(0, 1 << 63, 40)]
    for x in numbers:
        for y in numbers:
            assert field.multiply(x, y) == x * y % P
            assert field.add(x, y) == (x + y) % P


@pytest.mark.parametrize("bits", [16, 32, 44, 61])
def test_tag_is_the_dot_product_for_sums_of_up_to_61_bits(bits: int) -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(0, 1 << bits, 300, dtype=np.uint64)
    values[0] = (1 << bits) - 1
    key = hashlib.sha256(b"blindsight tag 3" + bytes(32) + b"context").digest()[:16]
    words = np.frombuffer(expand(key, bytes(4), 8 * 300), dtype="<u8")
    constant = int.from_bytes(expand(key, b"\xff" * 4, 8), "little")
    expected = sum(int(k) % P * int(v) for k, v in zip(words, values, strict=True)) % P
    for users in (1, 100):
        tag = field.tag(bytes(32), b"context", values, users)
        assert tag == (expected + users * constant) % P


def test_a_long_vectors_tag_is_the_dot_product_with_one_stream_per_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(field, "_CHUNK", 2 * field._PIECE)
    length = 3 * field._PIECE + 7  # two pieces in a chunk, and a second chunk
    values = np.random.default_rng(3).integers(0, 1 << 61, length, dtype=np.uint64)
    key = hashlib.sha256(b"blindsight tag 3" + bytes(32) + b"context").digest()[:16]
    chunks = [expand(key, bytes([n, 0, 0, 0]), 16 * field._PIECE) for n in range(2)]
    words = np.frombuffer(b"".join(chunks), dtype="<u8")[:length]
    constant = int.from_bytes(expand(key, b"\xff" * 4, 8), "little")
    expected = sum(int(k) % P * int(v) for k, v in zip(words, values, strict=True)) + constant
    assert field.tag(bytes(32), b"context", values) == expected % P


def test_tags_add_up() -> None:
    rng = np.random.default_rng(2)
    vectors = rng.integers(0, 1 << 40, (5, 100), dtype=np.uint64)
    total = sum(field.tag(b"s" * 32, b"c", vector) for vector in vectors) % P
    assert field.tag(b"s" * 32, b"c", vectors.sum(axis=0), 5) == total
    assert field.tag(b"s" * 32, b"c", 2 * vectors.sum(axis=0), 5) != 2 * total % P


def summed(layout: KeySharing, users: int, seed: int) -> tuple[dict, np.ndarray, int]:
    rng = np.random.default_rng(seed)
    sums = {j: np.zeros(layout.elements, dtype=np.uint64) for j in range(1, layout.holders + 1)}
    secret, value = np.zeros(layout.degree, dtype=np.int64), 0
    for _ in range(users):
        own = rng.integers(-63, 64, layout.degree).astype(np.int8)
        tag = int(rng.integers(0, P))
        secret, value = secret + own, (value + tag) % P
        for j, plain in layout.share(layout.pack(own, tag)).items():
            assert len(plain) == layout.plain_bytes(j)
            field.fold_sum(sums[j], layout.read(j, plain))
    return sums, secret, value


@pytest.mark.parametrize(("needed", "holders", "users"), [(3, 3, 3), (4, 5, 100), (15, 20, 20)])
def test_any_needed_holders_give_the_sum(needed: int, holders: int, users: int) -> None:
    layout = KeySharing(needed=needed, holders=holders, users=users, degree=200)
    sums, secret, value = summed(layout, users, 0)
    chosen = dict(list(sums.items())[-needed:])
    [(opened, who)] = layout.candidates(chosen, users)
    assert (opened == secret).all() and who == tuple(chosen)
    assert layout.some_fit({j: int(shares[-1]) for j, shares in chosen.items()}, value)
    assert not layout.some_fit({j: int(shares[-1]) for j, shares in chosen.items()}, value ^ 1)


def test_a_wrong_answer_is_no_candidate_but_the_true_sum_is() -> None:
    layout = KeySharing(needed=4, holders=5, users=10, degree=500)
    sums, secret, value = summed(layout, 10, 1)
    sums[2] = field.uniform(b"x" * 16, layout.elements)
    found = list(layout.candidates(sums, 10))
    assert [who for _, who in found] == [(1, 3, 4, 5)]
    assert (found[0][0] == secret).all()
    assert layout.some_fit({j: int(shares[-1]) for j, shares in sums.items()}, value)


def test_fewer_shares_than_needed_are_independent_of_the_key() -> None:
    """For every key there is exactly one polynomial through any t - 1 shares: uniform shares."""
    layout = KeySharing(needed=3, holders=3, users=3, degree=60)
    one, two = (layout.pack(np.full(60, v, dtype=np.int8), 5) for v in (-3, 7))
    known = {
        1: field.uniform(b"a" * 16, layout.elements),
        2: field.uniform(b"b" * 16, layout.elements),
    }
    third = field.interpolate({0: one, **known}, 3)
    # The same two shares fit the other key with another third share.
    other = field.interpolate({0: two, **known}, 3)
    assert (field.interpolate({**known, 3: third}) == one).all()
    assert (field.interpolate({**known, 3: other}) == two).all()


def test_packed_entries_never_carry() -> None:
    for users in (3, 100, 1000, 65_536):
        layout = KeySharing(needed=3, holders=3, users=users, degree=4096)
        assert layout.per_element * layout.width <= 60
        assert 127 * users < 1 << layout.width

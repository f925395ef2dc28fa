"""Packed codes are the bits they came from, and distances ignore the padding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from blindsight.core import codes
from blindsight.core.errors import InvalidData

BITS = hnp.arrays(
    np.uint8, st.tuples(st.integers(1, 6), st.integers(1, 80)), elements=st.integers(0, 1)
)


@settings(deadline=None)
@given(bits=BITS)
def test_unpacking_gives_back_the_packed_bits(bits):
    packed = codes.pack(bits)
    assert packed.shape == (len(bits), codes.n_bytes(bits.shape[1]))
    assert np.array_equal(codes.unpack(packed, bits.shape[1]), bits)
    assert np.array_equal(codes.from_signs(codes.to_signs(packed, bits.shape[1])), packed)


@settings(deadline=None)
@given(bits=BITS)
def test_packed_distances_equal_counting_differing_bits(bits):
    other = 1 - bits[::-1]
    expected = (bits[:, None, :] != other[None, :, :]).sum(axis=2)
    assert np.array_equal(codes.hamming(codes.pack(bits), codes.pack(other)), expected)


def test_bit_order_is_little():
    assert codes.pack([[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1]]).tolist() == [[2, 4]]


@pytest.mark.parametrize("bad", [[[2, 0]], [[0.5]], [["a"]], [1, 0], np.zeros((3, 0))])
def test_what_is_not_a_matrix_of_bits_is_refused(bad):
    with pytest.raises(InvalidData):
        codes.pack(bad)


def test_zero_has_no_sign():
    with pytest.raises(InvalidData):
        codes.from_signs([[1, 0, -1]])


def test_codes_with_padding_bits_set_are_refused():
    with pytest.raises(InvalidData, match="padding"):
        codes.unpack(np.array([[255]], dtype=np.uint8), 5)


def test_codes_of_another_width_are_refused():
    with pytest.raises(InvalidData, match="wide"):
        codes.hamming(np.zeros((1, 2), np.uint8), np.zeros((1, 3), np.uint8))
    with pytest.raises(InvalidData, match="bytes wide"):
        codes.unpack(np.zeros((1, 2), np.uint8), 24)


def test_distances_do_not_depend_on_the_buffer(monkeypatch):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 256, (n, 11), dtype=np.uint8) for n in (50, 40))
    whole = codes.hamming(a, b)
    monkeypatch.setattr(codes, "_BUFFER_BYTES", 700)
    assert np.array_equal(codes.hamming(a, b), whole)

"""Fixed-base powers are powers; randomisers are used once."""

from __future__ import annotations

import secrets

import pytest

from blindsight.federated.paper.paillier import FixedBase, PrivateKey


@pytest.mark.parametrize("window", [8, 9, 10])
def test_window_table_computes_the_power(window: int) -> None:
    base, modulus = 0x1234567, (1 << 127) - 1
    table = FixedBase(base, modulus, exponent_bits=96, window=window)
    for exponent in (0, 1, 255, 256, (1 << 96) - 1, *(secrets.randbits(96) for _ in range(20))):
        assert table.power(exponent) == pow(base, exponent, modulus)


def test_exponents_have_at_least_half_the_length_of_the_modulus(small_key: PrivateKey) -> None:
    table = small_key.public.fixed_base
    assert 0 <= table.exponent_bits - small_key.public.bits // 2 < table.window


def test_random_powers_use_every_digit() -> None:
    """Base 2 and a modulus past all powers: the exponent can be read off."""
    table = FixedBase(2, 1 << 66_000, exponent_bits=16, window=8)
    exponents = [int(table.random_power()).bit_length() - 1 for _ in range(4000)]
    assert len({e % 256 for e in exponents}) >= 250
    assert len({e // 256 for e in exponents}) >= 250


def test_randomisers_encrypt_zero(small_key: PrivateKey) -> None:
    assert small_key.decrypt_many(small_key.public.fixed_base.random_powers(10)) == [0] * 10


def test_threads_make_as_many_distinct_randomisers_as_asked(small_key: PrivateKey) -> None:
    seen: list[tuple[int, int]] = []
    made = small_key.public.fixed_base.random_powers(
        300, workers=2, progress=lambda done, total: seen.append((done, total))
    )
    assert len({int(x) for x in made}) == 300
    assert seen[-1] == (300, 300)

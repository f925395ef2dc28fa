"""The cryptosystem against plain integers, textbook formulas and fixed vectors."""

from __future__ import annotations

import math
import secrets

import gmpy2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blindsight.core.errors import InvalidData, ProtocolError
from blindsight.federated.paper.paillier import PrivateKey, PublicKey

quick = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def textbook_decrypt(ciphertext: int, p: int, q: int) -> int:
    """Paillier 1999, s = 1: L(c^λ mod n²) / L(g^λ mod n²), in Python's own integers."""
    n, lam = p * q, math.lcm(p - 1, q - 1)
    ell = (pow(ciphertext, lam, n * n) - 1) // n
    base = (pow(n + 1, lam, n * n) - 1) // n
    return ell * pow(base, -1, n) % n


def textbook_encrypt(plaintext: int, n: int) -> int:
    r = secrets.randbelow(n - 2) + 2
    return pow(n + 1, plaintext, n * n) * pow(r, n, n * n) % (n * n)


@given(data=st.data())
@quick
def test_decryption_inverts_encryption(small_key: PrivateKey, data: st.DataObject) -> None:
    x = data.draw(st.integers(0, int(small_key.public.n) - 1))
    assert small_key.decrypt(small_key.public.encrypt(x)) == x


@given(data=st.data())
@quick
def test_product_of_ciphertexts_decrypts_to_the_sum_of_plain_integers(
    small_key: PrivateKey, data: st.DataObject
) -> None:
    modulus = int(small_key.public.n)
    xs = data.draw(st.lists(st.integers(0, modulus - 1), min_size=1, max_size=8))
    total = small_key.public.add(*small_key.public.encrypt_many(xs))
    assert small_key.decrypt(total) == sum(xs) % modulus


def test_textbook_paillier_reads_our_ciphertexts_and_we_read_its(small_key: PrivateKey) -> None:
    p, q = (int(prime) for prime in small_key.factors())
    for _ in range(10):
        x = secrets.randbelow(p * q)
        assert textbook_decrypt(int(small_key.public.encrypt(x)), p, q) == x
        assert small_key.decrypt(textbook_encrypt(x, p * q)) == x


def test_known_answers() -> None:
    """Vectors computed once with Python's own integers: n = (2^61 - 1)(2^89 - 1), g = n + 1, r = 3
    or 12345.
    """
    n = 1427247692705959880439315947500961989719490561
    key = PrivateKey(2**61 - 1, 2**89 - 1, PublicKey(n, 9))
    vectors = {
        0: 1150664976924405221228512645512220844259726414686484004939449402209979451304538569788382275,  # noqa: E501
        1: 364918635448285328433228977591778291055434028026656968406680631050731803871379289299573083,  # noqa: E501
        42: 1580124898971455730015094123464533287269777168454936528118503731761328524259664699442604384,  # noqa: E501
        n
        - 1: 801735519945355821301282256160511089178908818192622297407920798602886740081734056489423531,  # noqa: E501
    }
    for plaintext, ciphertext in vectors.items():
        assert key.decrypt(ciphertext) == plaintext
    assert key.public.raw(2) == 2854495385411919760878631895001923979438981123


def test_binomial_expansion_is_the_power_of_n_plus_one(small_key: PrivateKey) -> None:
    public = small_key.public
    x = secrets.randbelow(int(public.n))
    assert public.raw(x) == pow(int(public.n) + 1, x, int(public.modulus))


def test_equal_plaintexts_have_different_ciphertexts(small_key: PrivateKey) -> None:
    assert len({int(c) for c in small_key.public.encrypt_many([7] * 200)}) == 200


@pytest.mark.parametrize("bad", ["zero", "negative", "modulus", "factor", "multiple of n"])
def test_ciphertexts_that_are_no_units_are_refused(small_key: PrivateKey, bad: str) -> None:
    public = small_key.public
    p, _ = small_key.factors()
    value = {
        "zero": 0,
        "negative": -5,
        "modulus": public.modulus,
        "factor": p * 17,
        "multiple of n": public.n,
    }[bad]
    with pytest.raises(ProtocolError):
        small_key.decrypt_many([public.encrypt(1), value])


@pytest.mark.parametrize("bad", [-1, "n"])
def test_plaintexts_outside_the_range_are_refused(small_key: PrivateKey, bad: int | str) -> None:
    with pytest.raises(InvalidData):
        small_key.public.encrypt(int(small_key.public.n) if bad == "n" else bad)


def test_ciphertexts_travel_as_bytes_of_known_length(small_key: PrivateKey) -> None:
    public = small_key.public
    ciphertexts = public.encrypt_many([1, 2, 3])
    data = public.to_bytes(ciphertexts)
    assert len(data) == 3 * public.ciphertext_bytes
    assert public.from_bytes(data) == ciphertexts
    with pytest.raises(ProtocolError):
        public.from_bytes(data[:-1])


def test_a_real_key_works_the_same(real_key: PrivateKey) -> None:
    xs = [0, 1, int(real_key.public.n) - 1]
    assert real_key.decrypt_many(real_key.public.encrypt_many(xs)) == xs


@pytest.mark.parametrize("bad", [1.5, 2.0, "7", None])
def test_only_whole_numbers_are_encrypted(small_key: PrivateKey, bad: object) -> None:
    with pytest.raises(InvalidData, match="whole number"):
        small_key.public.encrypt(bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidData, match="whole number"):
        small_key.public.encrypt_many([1, bad])  # type: ignore[list-item]


def test_moduli_that_anybody_can_factor_are_refused(small_key: PrivateKey) -> None:
    p, q = (int(prime) for prime in small_key.factors())
    n, h = p * q, int(small_key.public.h)
    prime = int(gmpy2.next_prime(1 << 400))
    for name, modulus in {
        "even": 2 * n,
        "prime": prime,
        "square": p * p,
        "power": p**3,
        "small factor": 65_521 * n,
    }.items():
        with pytest.raises(InvalidData):
            PublicKey(modulus, 4)
        assert name
    for base in (0, 1, n - 1, n, -h, p, n + h):
        with pytest.raises(InvalidData):
            PublicKey(n, base)
    root = (
        int(gmpy2.invert(p, q)) * p * 2 - 1
    )  # a square root of 1 that is not ±1: it would give n's factors away
    with pytest.raises(InvalidData):
        PublicKey(n, root % n)
    square = 4 * int(gmpy2.invert(p, q)) * p % n  # 4 modulo q
    half = (square + int(gmpy2.invert(q, p)) * q) % n  # and 1 modulo p: gcd(h - 1, n) is p
    assert (half % p, half % q, gmpy2.jacobi(half, n)) == (1, 4, 1)
    with pytest.raises(InvalidData, match="order"):
        PublicKey(n, half)


def test_a_base_of_small_order_is_refused() -> None:
    """With an element of order 7 every value has seven ciphertexts."""
    primes: list[int] = []
    candidate = 1 << 199
    while len(primes) < 2:
        candidate = int(gmpy2.next_prime(candidate))
        if candidate % 7 == 1 and candidate % 4 == 3:
            primes.append(candidate)
    p, q = primes
    parts = [
        next(r for x in range(2, 99) if (r := pow(x, (prime - 1) // 7, prime)) != 1)
        for prime in (p, q)
    ]
    base = (parts[0] * q * pow(q, -1, p) + parts[1] * p * pow(p, -1, q)) % (p * q)
    assert pow(base, 7, p * q) == 1
    with pytest.raises(InvalidData, match="order"):
        PublicKey(p * q, base)

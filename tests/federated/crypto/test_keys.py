"""Keys are well formed, stay secret, and survive a file; damaged files don't."""

from __future__ import annotations

import copy
import pickle

import gmpy2
import pytest

from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.federated.paper import paillier
from blindsight.federated.paper.paillier import PrivateKey


@pytest.mark.parametrize("bits", [384, 512, 1024])
def test_generated_primes_meet_the_conditions(bits: int) -> None:
    key = paillier.generate(bits, insecure_for_tests=True)
    p, q = key.factors()
    assert key.public.n.bit_length() == bits
    for prime in (p, q):
        assert gmpy2.is_prime(prime)
        assert prime % 4 == 3
        assert gmpy2.gcd((prime - 1) // 2, gmpy2.primorial(paillier.SMALLEST_FACTOR)) == 1
    assert gmpy2.gcd(p - 1, q - 1) == 2


def test_paper_length_warns_and_shorter_is_refused() -> None:
    with pytest.warns(UserWarning, match="reproduce the paper"):
        paillier.generate(1024)
    for bits in (256, 1536):
        with pytest.raises(InvalidParameter, match="2048"):
            paillier.generate(bits)


def test_secrets_stay_out_of_repr_and_pickle(small_key: PrivateKey) -> None:
    p, q = small_key.factors()
    shown = repr(small_key) + str(small_key) + repr(small_key.public)
    assert repr(small_key) == "PrivateKey(512 bits)"
    for secret in (p, q):
        assert str(secret) not in shown
        assert f"{int(secret):x}" not in shown
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="never pickled"):
            leak(small_key)


def test_wrong_factors_are_refused_without_being_shown(small_key: PrivateKey) -> None:
    p, _ = small_key.factors()
    with pytest.raises(InvalidData) as caught:
        PrivateKey(int(p), int(p) + 2, small_key.public)
    assert str(int(p)) not in str(caught.value)

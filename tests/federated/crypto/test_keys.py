"""Keys are well formed, stay secret, and survive a file; damaged files don't."""

from __future__ import annotations

import copy
import pickle

import gmpy2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.federated.paper import keys
from blindsight.federated.paper.paillier import PrivateKey
from blindsight.federated.paper.randomisers import RandomiserPool


@pytest.mark.parametrize("bits", [384, 512, 1024])
def test_generated_primes_meet_the_conditions(bits: int) -> None:
    key = keys.generate(bits, insecure_for_tests=True)
    p, q = key.factors()
    assert key.public.n.bit_length() == bits
    for prime in (p, q):
        assert gmpy2.is_prime(prime)
        assert prime % 4 == 3
        assert gmpy2.gcd((prime - 1) // 2, gmpy2.primorial(keys.SMALLEST_FACTOR)) == 1
    assert gmpy2.gcd(p - 1, q - 1) == 2


def test_paper_length_warns_and_shorter_is_refused() -> None:
    with pytest.warns(UserWarning, match="reproduce the paper"):
        keys.generate(1024)
    for bits in (256, 1536):
        with pytest.raises(InvalidParameter, match="2048"):
            keys.generate(bits)


def test_secrets_stay_out_of_repr_and_pickle(small_key: PrivateKey) -> None:
    p, q = small_key.factors()
    shown = (
        repr(small_key)
        + str(small_key)
        + repr(small_key.public)
        + repr(RandomiserPool(small_key.public).fill(3))
    )
    assert repr(small_key) == "PrivateKey(512 bits)"
    for secret in (p, q):
        assert str(secret) not in shown
        assert f"{int(secret):x}" not in shown
    for holder in (small_key, RandomiserPool(small_key.public)):
        for leak in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="never pickled"):
                leak(holder)


def test_wrong_factors_are_refused_without_being_shown(small_key: PrivateKey) -> None:
    p, _ = small_key.factors()
    with pytest.raises(InvalidData) as caught:
        PrivateKey(int(p), int(p) + 2, small_key.public)
    assert str(int(p)) not in str(caught.value)


def test_keys_survive_their_files(small_key: PrivateKey) -> None:
    public = keys.load_public(keys.dump_public(small_key.public))
    private = keys.load_private(keys.dump_private(small_key))
    assert public == small_key.public == private.public
    assert private.decrypt(public.encrypt(99)) == 99


@given(data=st.data())
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_damaged_key_files_are_refused(small_key: PrivateKey, data: st.DataObject) -> None:
    good = data.draw(
        st.sampled_from([keys.dump_public(small_key.public), keys.dump_private(small_key)])
    )
    place = data.draw(st.integers(0, len(good) - 1))
    flip = data.draw(st.integers(1, 255))
    bad = data.draw(
        st.sampled_from(
            [
                good[:place],
                good + b"x",
                good[:place] + bytes([good[place] ^ flip]) + good[place + 1 :],
            ]
        )
    )
    for load in (keys.load_public, keys.load_private):
        with pytest.raises(HostileFile):
            load(bad)

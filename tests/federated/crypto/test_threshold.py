"""Threshold decryption: t shares decrypt, t - 1 tell nothing."""

from __future__ import annotations

import itertools
import math
import secrets

import pytest

from blindsight.core.errors import HostileFile, InvalidParameter, ProtocolError
from blindsight.federated import keys
from blindsight.federated.paillier import PrivateKey
from blindsight.federated.threshold import KeyShare, combine, deal


@pytest.mark.parametrize(("needed", "holders"), [(2, 2), (2, 3), (3, 5), (5, 5)])
def test_any_t_shares_decrypt_as_the_key_does(any_degree: PrivateKey, needed: int, holders: int) -> None:
    public = any_degree.public
    shares = deal(any_degree, needed=needed, holders=holders)
    xs = [0, 1, int(public.plaintext_modulus) - 1, secrets.randbelow(int(public.plaintext_modulus))]
    ciphertexts = public.encrypt_many(xs)
    parts = {share.index: share.partial(ciphertexts) for share in shares}
    for chosen in itertools.combinations(parts, needed):
        assert combine(public, {i: parts[i] for i in chosen}, needed=needed, holders=holders) == xs


def test_sums_decrypt_jointly(small_key: PrivateKey) -> None:
    shares = deal(small_key, needed=2, holders=3)
    total = small_key.public.add(*small_key.public.encrypt_many([5, 6, 7]))
    parts = {share.index: share.partial([total], workers=1) for share in shares[1:]}
    assert combine(small_key.public, parts, needed=2, holders=3) == [18]


def test_fewer_shares_are_refused_and_wrong_ones_noticed(small_key: PrivateKey) -> None:
    shares = deal(small_key, needed=3, holders=4)
    ciphertexts = small_key.public.encrypt_many([42])
    parts = {share.index: share.partial(ciphertexts) for share in shares}
    with pytest.raises(ProtocolError, match="3 are needed, 2 answered"):
        combine(small_key.public, {1: parts[1], 2: parts[2]}, needed=3, holders=4)
    with pytest.raises(ProtocolError, match="wrong"):
        combine(small_key.public, {1: parts[1], 2: parts[2], 3: [parts[3][0] + 1]}, needed=3, holders=4)
    with pytest.raises(ProtocolError, match="fit together"):
        combine(small_key.public, {1: parts[1], 2: parts[2], 9: parts[3]}, needed=3, holders=4)


def test_shares_short_of_t_fit_every_secret() -> None:
    """Shamir over Z/(n^s m): for t - 1 shares and any other secret there is a polynomial that explains both.

    That needs the points' differences to be units of the ring, which the primes are made for.
    """
    key = keys.generate(256, insecure_for_tests=True)
    p, q = (int(x) for x in key.factors())
    ring = p * q * (p - 1) * (q - 1) // 4
    assert all(math.gcd(difference, ring) == 1 for difference in range(1, 64))
    [first, *_] = deal(key, needed=2, holders=3)
    for secret in (0, 1, secrets.randbelow(ring)):
        slope = (int(first._value) - secret) * pow(first.index, -1, ring) % ring
        assert (secret + slope * first.index) % ring == int(first._value)


def test_shares_survive_their_bytes_and_show_nothing(small_key: PrivateKey) -> None:
    share = deal(small_key, needed=2, holders=3)[1]
    copy = KeyShare.load(share.dump())
    ciphertext = small_key.public.encrypt(3)
    assert copy.partial([ciphertext]) == share.partial([ciphertext])
    assert repr(copy) == "KeyShare(2 of 3, 2 needed)"
    with pytest.raises(HostileFile):
        KeyShare.load(share.dump()[:-1])


@pytest.mark.parametrize(("needed", "holders"), [(1, 3), (4, 3), (2, 65)])
def test_impossible_sharings_are_refused(small_key: PrivateKey, needed: int, holders: int) -> None:
    with pytest.raises(InvalidParameter):
        deal(small_key, needed=needed, holders=holders)

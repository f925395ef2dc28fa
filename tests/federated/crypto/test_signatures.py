"""Identities sign, refuse forgeries, and keep their secret."""

from __future__ import annotations

import pickle

import pytest

from blindsight.core.errors import InvalidData
from blindsight.federated.sums.sealing import SIGNATURE_BYTES, Identity, Verifier


def test_signatures_hold_for_their_message_and_owner_only() -> None:
    one, other = Identity(), Identity()
    signature = one.sign(b"message")
    assert len(signature) == SIGNATURE_BYTES
    assert one.verifier.verify(b"message", signature)
    assert not one.verifier.verify(b"massage", signature)
    assert not other.verifier.verify(b"message", signature)
    assert not one.verifier.verify(b"message", bytes(64))


def test_identities_survive_their_bytes_and_show_nothing() -> None:
    identity = Identity()
    signature = Identity(identity.dump()).sign(b"m")
    assert Verifier(identity.verifier.dump()).verify(b"m", signature)
    assert identity.dump().hex() not in repr(identity)
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(identity)


def test_an_ed25519_verifier_holds_no_secret() -> None:
    identity = Identity()
    assert identity.verifier.dump() != identity.dump()


def test_known_ed25519_vector() -> None:
    """RFC 8032, section 7.1, test 1: the empty message."""
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    identity = Identity(seed)
    assert identity.verifier.dump().hex() == public
    assert identity.sign(b"").hex().startswith("e5564300c360ac729086e2cc806e828a84877f1eb8e5d974")


@pytest.mark.parametrize("bad", [b"", bytes(31), bytes(33)])
def test_malformed_identities_are_refused(bad: bytes) -> None:
    for load in (Identity, Verifier):
        with pytest.raises(InvalidData):
            load(bad)

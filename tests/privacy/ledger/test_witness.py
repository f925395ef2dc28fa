"""A head kept elsewhere shows what the ledger alone cannot: a rewritten chain, an old copy, a cut
off end.
"""

from __future__ import annotations

import shutil

import pytest

from blindsight.core.errors import HostileFile, InvalidParameter, LedgerTampered
from blindsight.privacy.guarantee import Cost
from blindsight.privacy.ledger import Ledger, SigningKey, make_key, read_witness, witness

TENTH = Cost(epsilon=0.1, unit="record")


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "ledger.db", dataset="ward-7") as ledger:
        ledger.grant(Cost(epsilon=1, unit="record"))
        yield ledger


@pytest.fixture
def key(tmp_path):
    return make_key(tmp_path / "key")


def test_an_old_copy_contradicts_the_witness(ledger, tmp_path, key):
    ledger.close()
    shutil.copy(tmp_path / "ledger.db", tmp_path / "old.db")
    ledger.charge(TENTH, what="codes")
    (tmp_path / "elsewhere").mkdir()
    assert witness([ledger], tmp_path / "elsewhere", key=key) == {"ward-7": ledger.head()}
    known = read_witness(tmp_path / "elsewhere", key=key)["ward-7"]
    ledger.verify(known=known)
    with Ledger(tmp_path / "old.db", dataset="ward-7") as old:
        old.verify()
        with pytest.raises(LedgerTampered, match="rewritten"):
            old.verify(known=known)
        old.charge(Cost(epsilon=0.2, unit="record"), what="another history")
        with pytest.raises(LedgerTampered):
            witness([old], tmp_path / "elsewhere", key=key)
    assert read_witness(tmp_path / "elsewhere", key=key)["ward-7"] == known


def test_a_witness_grows_by_new_heads_only(ledger, tmp_path):
    place = tmp_path / "witness"
    for _ in range(3):
        ledger.charge(TENTH, what="codes")
        witness([ledger], place)
        witness([ledger], place)
    heads = read_witness(place)["ward-7"]
    assert [head.sequence for head in heads] == [2, 3, 4]
    assert place.stat().st_mode & 0o777 == 0o600
    place.write_bytes(place.read_bytes()[:-10])  # a crash in the middle of a line
    assert len(read_witness(place)["ward-7"]) == 2
    witness([ledger], place)
    assert [head.sequence for head in read_witness(place)["ward-7"]] == [2, 3, 4]


def test_a_forged_line_does_not_bear_the_signature(ledger, tmp_path, key):
    place = tmp_path / "witness"
    witness([ledger], place, key=key)
    text = place.read_text()
    place.write_text(text.replace("ward-7", "ward-8"))
    with pytest.raises(LedgerTampered, match="signature"):
        read_witness(place, key=key)
    place.write_text(text)
    with pytest.raises(LedgerTampered, match="signature"):
        read_witness(place, key=make_key(tmp_path / "other"))


def test_the_public_half_checks_and_cannot_sign(ledger, tmp_path):
    private = make_key(tmp_path / "key")
    public = SigningKey.read(tmp_path / "key.pub")
    assert public.fingerprint == private.fingerprint
    witness([ledger], tmp_path / "w", key=private)
    assert read_witness(tmp_path / "w", key=public) == {"ward-7": [ledger.head()]}
    with pytest.raises(InvalidParameter, match="not sign"):
        ledger.charge(TENTH, what="codes")
        witness([ledger], tmp_path / "w", key=public)


def test_keys_are_their_owners_alone_and_never_shown(tmp_path, key):
    content = (tmp_path / "key").read_text()
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    secret = content.splitlines()[1]
    assert secret not in repr(key) + str(vars(key)).replace("b'", "")
    with pytest.raises(InvalidParameter, match="exists already"):
        make_key(tmp_path / "key")


@pytest.mark.parametrize(
    "content", [b"hello\n", b"[]\n", b"{}\n", b'{"dataset": 1}\n', b"[" * 5000 + b"\n"]
)
def test_a_hostile_witness_is_refused(tmp_path, content):
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(HostileFile):
        read_witness(tmp_path / "w")


@pytest.mark.parametrize("content", [b"", b"hello", b"-----BEGIN PUBLIC KEY-----\nxx"])
def test_a_hostile_key_is_refused(tmp_path, content):
    (tmp_path / "k").write_bytes(content)
    with pytest.raises(InvalidParameter):
        SigningKey.read(tmp_path / "k")

"""The vault: the same photo is the same record with the same noise, and its key is nobody
else's.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import sqlite3
import stat

import numpy as np
import pytest

import warm
from blindsight.core import durable
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter, MissingData
from blindsight.privacy.mechanisms import KaryResponse, to_fields
from blindsight.privacy.vault import Photo, RecordStream, Vault

LAW = json.dumps(to_fields(KaryResponse(epsilon=4.0, k=29, unit="record")), sort_keys=True)


@pytest.fixture
def vault(tmp_path):
    return Vault.create(tmp_path / "v")


def stream(vault, record, law, *, about=""):
    return vault.source([record], about=about).stream(f"{record}/{law}")


def noise(vault, record="a", law=LAW, **options):
    return stream(vault, record, law, **options).bytes(64)


def test_content_alone_names_a_record(vault, tmp_path):
    one = vault.record_of(b"photo")
    assert one == Vault(tmp_path / "v").record_of(b"photo")
    assert one != vault.record_of(b"photo.")
    assert one != Vault.create(tmp_path / "w").record_of(b"photo"), "another key, another id"


def test_noise_belongs_to_record_mechanism_function_and_key(vault, tmp_path):
    first = noise(vault)
    assert first == noise(Vault(tmp_path / "v"))
    others = [
        noise(vault, "b"),
        noise(vault, law=LAW.replace("4.0", "5.0")),
        noise(vault, about="another hash function"),
        noise(Vault.create(tmp_path / "w")),
    ]
    assert len({first, *others}) == 5


def test_a_workers_source_draws_what_the_vault_draws_and_knows_no_other_record(vault):
    source = copy.deepcopy(vault.source(["a"], about="f"))  # as it is copied on its way to a worker
    assert source.stream(f"a/{LAW}").bytes(64) == noise(vault, about="f")
    with pytest.raises(InvalidParameter):
        source.stream(f"b/{LAW}")
    assert vault._key not in pickle.dumps(source) and vault._key.hex().encode() not in pickle.dumps(
        source
    )


def test_the_stream_is_aes_in_counter_mode_for_good():
    """A known answer: permanent noise must not change with a release of a library, or of ours."""
    stream = RecordStream(bytes(range(32)))
    assert stream.bytes(16).hex() == "f29000b62a499fd0a9f39a6add2e7780"
    assert stream.integers(0, 29, size=8).tolist() == [13, 6, 3, 20, 1, 23, 28, 20]
    assert RecordStream(bytes(32)).random() == 0.5372505566272159


def test_keyed_response_has_the_law_of_k_ary_response(vault):
    mechanism = KaryResponse(epsilon=1.0, k=4, unit="record")
    n = 5_000
    drawn = np.array(
        [int(mechanism.release(np.array([2]), rng=stream(vault, f"{i}", LAW))[0]) for i in range(n)]
    )
    shares = np.bincount(drawn, minlength=4) / n
    truth = mechanism.truth_probability
    expected = np.full(4, (1 - truth) / 3)
    expected[2] = truth
    # 5.3 standard deviations in each of the four: by the exact binomials, a false alarm in 5.4e-7
    # of the runs.
    assert (abs(shares - expected) < 5.3 * np.sqrt(expected * (1 - expected) / n)).all()


def test_the_first_code_of_a_record_stands(vault):
    first = np.arange(8, dtype=np.uint8).reshape(2, 4)
    assert (vault.keep_codes("r", ["a", "b"], first) == first).all()
    again = vault.keep_codes("r", ["b", "a", "c"], np.zeros((3, 4), np.uint8))
    assert (again == np.stack([first[1], first[0], np.zeros(4, np.uint8)])).all()
    assert (vault.keep_codes("another release", ["a"], first[:1] + 1) == first[:1] + 1).all()
    with pytest.raises(HostileFile, match="another length"):
        vault.keep_codes("r", ["a"], np.zeros((1, 5), np.uint8))


AT_ONCE = """
import os, sys
import numpy as np
from blindsight.privacy.vault import Vault

names = [str(number) for number in range(40)]
ready, go = os.pipe(), os.pipe()
for _ in range(4):
    if os.fork() == 0:
        os.close(go[1])
        vault = Vault(sys.argv[1])
        os.write(ready[1], b".")
        os.read(go[0], 1)  # ends for all of them at the same moment
        codes = np.frombuffer(os.urandom(160), np.uint8).reshape(40, 4)
        print(vault.keep_codes("r", names, codes).tobytes().hex(), flush=True)
        os._exit(0)
os.close(ready[1])
for _ in range(4):
    os.read(ready[0], 1)
os.close(go[1])
sys.exit(sum(os.wait()[1] != 0 for _ in range(4)))
"""


def test_many_processes_agree_on_one_code(tmp_path):
    Vault.create(tmp_path / "v")
    done = warm.run(["-c", AT_ONCE, tmp_path / "v"])
    codes = done.stdout.split()
    assert done.returncode == 0 and len(codes) == 4, done.stderr
    assert len(set(codes)) == 1


def test_a_person_has_at_most_so_many_records_and_nobody_decides_over_another(vault):
    photos = [Photo(f"{i}.jpg", f"{i:02d}", person) for i, person in enumerate("aaaaabbbb")]
    vault.keep_photos(photos)
    records = [photo.record for photo in photos]
    assert vault.chosen("r", records, 2) == {"00", "01", "05", "06"}
    vault.keep_codes("r", ["03", "04"], np.zeros((2, 1), np.uint8))
    assert vault.chosen("r", records, 2) == {"03", "04", "05", "06"}, (
        "released ones keep their places"
    )
    vault.keep_photos([Photo("shared.jpg", "05", "a")])
    assert vault.chosen("r", records, 2) == {"03", "04", "06"}, (
        "a shared record needs a place with both"
    )


def test_copies_are_names_of_one_record(vault):
    vault.keep_photos([Photo("b.jpg", "1"), Photo("a.jpg", "1"), Photo("c.jpg", "2")])
    assert vault.names_of(["1", "2", "3"]) == {"1": ["a.jpg", "b.jpg"], "2": ["c.jpg"]}
    vault.keep_photos([Photo("c.jpg", "1")], gone=["a.jpg"])
    assert vault.names_of(["1", "2"]) == {"1": ["b.jpg", "c.jpg"]}


def test_the_key_never_shows(vault, tmp_path):
    secret = vault._key.hex()
    shown = (
        repr(vault)
        + str(vault)
        + repr(vault.source(["a"], about="f"))
        + repr(stream(vault, "a", LAW))
        + vault.number
    )
    assert secret not in shown and vault.number not in secret
    with pytest.raises(InvalidParameter, match="cannot be copied"):
        pickle.dumps(vault)
    (tmp_path / "v" / "key").write_text("blindsight vault key 1 " + secret[:-2])
    with pytest.raises(HostileFile) as caught:
        Vault(tmp_path / "v")
    assert secret[:-2] not in str(caught.value)


def test_only_the_owner_may_enter(tmp_path):
    os.makedirs(tmp_path / "v", mode=0o755)
    vault = Vault.create(tmp_path / "v")
    vault.note(ledger="ledger.db")
    assert stat.S_IMODE((tmp_path / "v").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "v").iterdir()} == {0o600}
    assert "KEEP" in (tmp_path / "v" / "KEEP-THIS-SECRET.txt").name
    (tmp_path / "v").chmod(0o755)  # as a copy from an archive comes back
    Vault(tmp_path / "v")
    assert stat.S_IMODE((tmp_path / "v").stat().st_mode) == 0o700


def test_a_vault_is_not_made_over_another_or_over_something_else(tmp_path):
    first = Vault.create(tmp_path / "v")
    with pytest.raises(InvalidData, match="not empty"):
        Vault.create(tmp_path / "v")
    assert Vault.open_or_create(tmp_path / "v").number == first.number
    with pytest.raises(MissingData, match="holds no key"):
        Vault(tmp_path / "nowhere")
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("dear")
    with pytest.raises(InvalidData, match="not empty"):
        Vault.open_or_create(tmp_path / "letters")


def test_of_two_runs_that_make_one_vault_at_once_both_use_the_first(tmp_path, monkeypatch):
    """The race is held open: the other run's vault appears just before ours is renamed."""
    rename = durable.rename

    def slower(source, target):
        monkeypatch.setattr(durable, "rename", rename)
        other.append(Vault.create(tmp_path / "v").number)
        rename(source, target)

    other: list[str] = []
    monkeypatch.setattr(durable, "rename", slower)
    assert [Vault.open_or_create(tmp_path / "v").number] == other
    assert [path.name for path in tmp_path.iterdir()] == ["v"]


@pytest.mark.parametrize(
    "statement",
    ["CREATE TRIGGER t AFTER INSERT ON codes BEGIN DELETE FROM codes; END", "DROP TABLE persons"],
)
def test_a_database_that_was_meddled_with_is_refused(vault, tmp_path, statement):
    connection = sqlite3.connect(tmp_path / "v" / "records.db")
    connection.execute(statement)
    connection.commit()
    connection.close()
    with pytest.raises(HostileFile):
        Vault(tmp_path / "v")


def test_a_damaged_database_is_refused(vault, tmp_path):
    (tmp_path / "v" / "records.db").write_bytes(b"hello" * 1000)
    with pytest.raises(HostileFile, match="Restore"):
        Vault(tmp_path / "v")

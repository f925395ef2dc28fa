"""A damaged or made-up file is refused with `HostileFile`, never a crash, never half an index."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib

import numpy as np
import pytest

from blindsight.core.codes import MatchModel
from blindsight.core.errors import HostileFile
from blindsight.index import HammingIndex
from blindsight.index.index_file import (
    ADD,
    MAGIC,
    MAX_PAYLOAD,
    REMOVE,
    IndexHeader,
    Record,
    fresh_file,
)
from index.index_contract import GUARANTEE, random_codes


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.index"
    model = MatchModel.independent_bits(8, 0.1, prior=0.1)
    with HammingIndex.create(path, 8, names=True, guarantee=GUARANTEE, decoding=model) as index:
        index.add(random_codes(5, 8), ids=list("abcde"))
        index.remove(["b"])
        index.add(random_codes(2, 8, seed=1), ids=["f", "a"])
    return path


def contents(path) -> dict:
    index = HammingIndex.load(path)
    return {
        key: code.tobytes()
        for ids, rows in index.items()
        for key, code in zip(ids, rows, strict=True)
    }


def test_every_single_damaged_byte_is_refused(good, tmp_path):
    """Flip each byte of the file in turn: none may be read as something else."""
    whole = good.read_bytes()
    bad = tmp_path / "bad.index"
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x41
        bad.write_bytes(damaged)
        with pytest.raises(HostileFile):
            HammingIndex.load(bad)
        if position % 9 == 0:
            with pytest.raises(HostileFile):
                HammingIndex.open(bad)
        assert bad.read_bytes() == damaged, "a refused file must be left as it was"


def test_every_truncation_gives_a_run_of_whole_changes_or_a_refusal(good, tmp_path):
    whole = good.read_bytes()
    cut = tmp_path / "cut.index"
    states = []
    for length in range(len(whole) + 1):
        cut.write_bytes(whole[:length])
        try:
            state = contents(cut)
        except HostileFile:
            assert not states, "once the header is whole a shorter file is a crash, not an attack"
            continue
        if not states or states[-1] != state:
            states.append(state)
    assert [sorted(state) for state in states] == [[], list("abcde"), list("acde"), list("acdef")]


def test_zeros_that_a_power_failure_leaves_are_cut_off(good):
    before = contents(good)
    with open(good, "ab") as file:
        file.write(bytes(5000))
    with HammingIndex.open(good) as index:
        index.add(random_codes(1, 8, seed=3), ids=["z"])
    after = contents(good)
    assert after.keys() == before.keys() | {"z"}


def test_records_cannot_be_doubled_moved_or_left_out(good, tmp_path):
    whole = good.read_bytes()
    starts = record_starts(whole)
    first, second, third = (
        whole[a:b] for a, b in zip(starts, [*starts[1:], len(whole)], strict=True)
    )
    head = whole[: starts[0]]
    bad = tmp_path / "bad.index"
    for forged in (
        second + third,
        first + third,
        second + first + third,
        first + first + second + third,
    ):
        bad.write_bytes(head + forged)
        with pytest.raises(HostileFile):
            HammingIndex.load(bad)


def record_starts(whole: bytes) -> list[int]:
    position = len(MAGIC) + 4 + 32 + struct.unpack_from("<I", whole, len(MAGIC))[0]
    starts = []
    while position < len(whole):
        starts.append(position)
        position += 20 + struct.unpack_from("<B3xIQ", whole, position)[2] + 32
    return starts


@pytest.mark.parametrize(
    ("names", "record"),
    [
        (False, Record(ADD, 2**32 - 1, b"")),
        (False, Record(ADD, 1, b"short")),
        (False, Record(ADD, 1, bytes(8) + b"\xff\xff\xff\xff")),
        (False, Record(ADD, 1, bytes(8) + b"\xff\xff")),  # 12 bits: padding set
        (False, Record(ADD, 2, bytes(16) + bytes(4))),  # the same id twice
        (False, Record(REMOVE, 1, bytes(9))),
        (True, Record(ADD, 2**32 - 1, bytes(8))),
        (True, Record(ADD, 1, struct.pack("<I", 2**32 - 1) + bytes(2))),
        (True, Record(ADD, 1, struct.pack("<I", 2) + b"\xff\xfe" + bytes(2))),  # not UTF-8
        (True, Record(ADD, 1, struct.pack("<I", 5000) + b"a" * 5000 + bytes(2))),  # name too long
        (True, Record(REMOVE, 2, struct.pack("<II", 1, 1) + b"aa")),
    ],
)
def test_a_forged_record_with_a_right_checksum_is_refused(tmp_path, names, record):
    path = tmp_path / "forged.index"
    fresh_file(path, IndexHeader(n_bits=12, names=names).to_fields(), iter([record]), replace=True)
    with pytest.raises(HostileFile):
        HammingIndex.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "blindsight index 9"},
        {"n_bits": 0},
        {"n_bits": 2**40},
        {"n_bits": True},
        {"n_bits": "8"},
        {"names": 1},
        {"structure": {"name": "pickle"}},
        {"structure": {"name": "ivf", "cells": -1, "probes": 1}},
        {"structure": {"name": "hnsw", "depth": 1}},
        {"structure": []},
        {"guarantee": {"mechanism": "x"}},
        {"guarantee": "none"},
        {"decoding": {"beta": 0.9, "prior": 0.1, "match": [1], "other": [1]}},
        {"decoding": {"beta": 0.1}},
        {"decoding": 7},
    ],
)
def test_a_forged_header_is_refused(tmp_path, change):
    path = tmp_path / "forged.index"
    fresh_file(path, {**IndexHeader(n_bits=8).to_fields(), **change}, iter(()), replace=True)
    with pytest.raises(HostileFile):
        HammingIndex.load(path)
    with pytest.raises(HostileFile):
        HammingIndex.open(path)


@pytest.mark.parametrize("text", [b"[1, 2]", b"{", b"\xff", b"[" * 100_000, b"{}"])
def test_a_header_must_be_a_json_object(tmp_path, text):
    path = tmp_path / "forged.index"
    path.write_bytes(MAGIC + struct.pack("<I", len(text)) + hashlib.sha256(text).digest() + text)
    with pytest.raises(HostileFile):
        HammingIndex.load(path)


def test_a_giant_length_does_not_allocate(tmp_path):
    path = tmp_path / "forged.index"
    head = struct.pack("<B3xIQ", ADD, 1, MAX_PAYLOAD + 1)
    fresh_file(path, IndexHeader(n_bits=8).to_fields(), iter(()), replace=True)
    with open(path, "ab") as file:
        file.write(head + zlib.crc32(head).to_bytes(4, "little"))
    with pytest.raises(HostileFile, match="not one of ours"):
        HammingIndex.load(path)


@pytest.mark.parametrize(
    "content", [b"", b"x", b"PK\x03\x04" * 100, json.dumps({"a": 1}).encode(), bytes(1000)]
)
def test_other_files_are_not_indexes(tmp_path, content):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(HostileFile, match="not a Blindsight index"):
        HammingIndex.load(path)


def test_random_bytes_never_crash_the_reader(good, tmp_path):
    rng = np.random.default_rng(0)
    whole = good.read_bytes()
    bad = tmp_path / "bad.index"
    for _ in range(300):
        damaged = bytearray(whole)
        start = int(rng.integers(0, len(whole)))
        damaged[start : start + 40] = rng.bytes(int(rng.integers(1, 80)))
        bad.write_bytes(damaged)
        try:
            HammingIndex.load(bad)
        except HostileFile:
            continue
        # Only a tail that looks like a torn write may pass, and then what came before it is whole.
        assert sorted(contents(bad)) in ([], list("abcde"), list("acde"))

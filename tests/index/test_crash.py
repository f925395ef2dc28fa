"""kill -9 in the middle of upserts: what was acknowledged is there, whole, and nothing is there by
halves.
"""

from __future__ import annotations

import os
import random
import signal

import numpy as np
import pytest

import warm
from blindsight.core.errors import InvalidData
from blindsight.index import HammingIndex
from core.small_disk import can_mount, small_disk

# Writes batches of 50 codes under one batch number and says so after each acknowledgement, until an
# alarm, which no handler catches, ends the process wherever it is.
WRITER = """
import signal
import sys
import numpy as np
from blindsight.index import HammingIndex
index = HammingIndex.open(sys.argv[1])
start, delay = int(sys.argv[2]), float(sys.argv[3])
if start > 0:
    signal.setitimer(signal.ITIMER_REAL, delay)
for batch in range(start, start + 100_000):
    codes = np.full((50, 2048), batch % 251, dtype=np.uint8)
    codes[:, :4] = np.frombuffer(batch.to_bytes(4, "little"), dtype=np.uint8)
    index.add(codes, ids=np.arange(50) + 50 * (batch % 20))
    sys.stdout.write(f"{batch}\\n")
    sys.stdout.flush()
    if batch == 0:
        signal.setitimer(signal.ITIMER_REAL, delay)
"""


def acknowledged_after_kill(path, start: int, delay: float) -> int:
    """The last batch that a writer acknowledged before it was killed `delay` seconds into its work;
    the first of all writers has written a batch by then, however busy the machine is.
    """
    writer = warm.run(["-c", WRITER, path, str(start), str(max(delay, 1e-6))])
    assert writer.returncode == -signal.SIGALRM, writer.stderr
    lines = writer.stdout.split()
    return int(lines[-1]) if lines else start - 1


def test_after_kill_9_the_index_holds_what_was_acknowledged(tmp_path):
    path = tmp_path / "x.index"
    HammingIndex.create(path, 8 * 2048).close()
    moments = random.Random(0)  # when to kill; nothing secret
    start = 0
    for _ in range(6):
        last = acknowledged_after_kill(path, start, moments.uniform(0.0, 0.12))
        with HammingIndex.open(path) as index:
            newest = last
            for slot in range(20):
                present = [key for key in range(50 * slot, 50 * slot + 50) if key in index]
                assert len(present) in (0, 50), "a batch is there whole or not at all"
                if not present:
                    assert last < slot
                    continue
                codes = index.codes_of(present)
                batches = {int.from_bytes(code[:4].tobytes(), "little") for code in codes}
                assert len(batches) == 1
                batch = batches.pop()
                assert (codes[:, 4:] == batch % 251).all()
                newest = max(newest, batch)
                # The newest acknowledged batch of this slot, or the one that was being written.
                expected = last - (last - slot) % 20
                assert batch in (expected, last + 1), "an acknowledged batch is missing"
            assert newest <= last + 1, (
                "at most one batch was written whole but not yet acknowledged"
            )
        start = newest + 1
    assert start > 0, "the writers never got to write"


def test_a_failed_write_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "x.index"
    index = HammingIndex.create(path, 8)
    index.add(np.zeros((2, 1), np.uint8))
    before = path.read_bytes()

    real, failures = os.fsync, iter([True])

    def full_once(descriptor):
        if next(failures, False):
            raise OSError(28, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_once)
        try:
            index.add(np.ones((2, 1), np.uint8))
        except OSError:
            pass
        else:
            raise AssertionError("a write that failed was acknowledged")
    assert len(index) == 2
    assert path.read_bytes() == before
    index.add(np.ones((3, 1), np.uint8))
    index.close()
    assert len(HammingIndex.load(path)) == 5


def test_a_write_that_cannot_be_undone_poisons_the_handle_and_not_the_file(tmp_path, monkeypatch):
    path = tmp_path / "x.index"
    index = HammingIndex.create(path, 8)
    index.add(np.zeros((2, 1), np.uint8))

    def broken(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        patch.setattr(os, "ftruncate", broken)
        with pytest.raises(OSError, match="Input/output"):
            index.add(np.ones((2, 1), np.uint8))
    with pytest.raises(InvalidData, match="open the file again"):
        index.add(np.ones((2, 1), np.uint8))
    index.close()
    with HammingIndex.open(path) as again:
        assert len(again) in (2, 4)  # written whole, but not acknowledged
        again.add(np.ones((3, 1), np.uint8))
        assert len(HammingIndex.load(path)) == len(again)


@pytest.mark.skipif(not can_mount(), reason="mounting a small file system needs root")
def test_a_full_disk_loses_no_acknowledged_code(tmp_path):
    with small_disk(tmp_path) as make_room:
        index = HammingIndex.create(tmp_path / "x.index", 8 * 1000)
        stored = 0
        with pytest.raises(OSError, match="No space"):
            for _ in range(5000):
                index.add(np.full((1, 1000), stored % 251, np.uint8))
                stored += 1
        assert stored > 100
        with pytest.raises(OSError, match="No space"):
            index.add(np.ones((1, 1000), np.uint8))
        assert len(HammingIndex.load(tmp_path / "x.index")) == stored == len(index)
        make_room()
        for _ in range(210):
            index.add(np.full((1, 1000), stored % 251, np.uint8))
            stored += 1
        index.close()
        found = HammingIndex.load(tmp_path / "x.index")
        assert len(found) == stored
        codes = found.codes_of(np.arange(stored))
        assert (codes == (np.arange(stored) % 251)[:, None]).all()

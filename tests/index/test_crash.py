"""kill -9 in the middle of upserts: what was acknowledged is there, whole, and nothing is there by halves."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np

from blindsight.index import HammingIndex

# Writes batches of 50 codes under one batch number and says so after each acknowledgement.
WRITER = """
import sys
import numpy as np
from blindsight.index import HammingIndex
index = HammingIndex.open(sys.argv[1])
start = int(sys.argv[2])
print("ready", flush=True)
for batch in range(start, start + 100_000):
    codes = np.full((50, 2048), batch % 251, dtype=np.uint8)
    codes[:, :4] = np.frombuffer(batch.to_bytes(4, "little"), dtype=np.uint8)
    index.add(codes, ids=np.arange(50) + 50 * (batch % 20))
    sys.stdout.write(f"{batch}\\n")
    sys.stdout.flush()
"""


def acknowledged_after_kill(path, start: int, delay: float) -> int:
    """The last batch that a writer acknowledged before it was killed `delay` seconds into its work."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(start)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(delay)
        os.kill(writer.pid, signal.SIGKILL)
        lines = [line for line in writer.stdout.read().split("\n") if line]
    return int(lines[-1]) if lines else start - 1


def test_after_kill_9_the_index_holds_what_was_acknowledged(tmp_path):
    path = tmp_path / "x.index"
    HammingIndex.create(path, 8 * 2048).close()
    random.seed(0)  # when to kill; nothing secret
    start = 0
    for _ in range(6):
        last = acknowledged_after_kill(path, start, random.uniform(0.0, 0.12))
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
            assert newest <= last + 1, "at most one batch was written whole but not yet acknowledged"
        start = newest + 1
    assert start > 0, "the writers never got to write"


def test_a_failed_write_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "x.index"
    index = HammingIndex.create(path, 8)
    index.add(np.zeros((2, 1), np.uint8))
    before = path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
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

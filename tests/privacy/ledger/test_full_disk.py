"""A full disk refuses the charge, loses nothing, and the ledger goes on once there is room."""

from __future__ import annotations

import resource
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest

from blindsight.core.errors import LedgerError
from blindsight.privacy.guarantee import Cost
from blindsight.privacy.ledger import Ledger
from core.small_disk import can_mount, small_disk

COST = Cost(epsilon=0.1, unit="record")


@contextmanager
def file_size_limit(folder: Path):
    """No file may grow past 200 kB: writes fail with "file too large"."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("full", [file_size_limit, *([small_disk] if can_mount() else [])])
def test_a_full_disk_refuses_and_loses_nothing(tmp_path, full):
    with full(tmp_path) as make_room:
        with Ledger(tmp_path / "ledger.db", dataset="ward-7") as ledger:
            ledger.grant(Cost(epsilon=1000, unit="record"))
            charged = []
            with pytest.raises(LedgerError, match="Nothing may be released"):
                for i in range(5000):
                    charged.append(ledger.charge(COST, what=f"release {i}"))
            assert len(charged) > 10
            with pytest.raises(LedgerError):
                ledger.charge(COST, what="still full")
            assert [entry for entry in ledger.entries() if entry.kind == "charge"] == charged
            make_room()
            charged.append(ledger.charge(COST, what="room again"))
            assert ledger.verify() == charged[-1].head
            assert ledger.balance("record").spent.micro_epsilon == 100_000 * len(charged)
        with Ledger(tmp_path / "ledger.db", dataset="ward-7") as again:
            assert again.head() == charged[-1].head

"""The bench's crypto rows exist, are finite and keep their names, on a vector short enough for a
test.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.federated import attacks, peers, scale
from benchmarks.federated import crypto as federated_crypto
from blindsight.federated.sums import Settings
from blindsight.federated.sums.messages import contribution_bytes


def test_crypto_rows_have_their_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(federated_crypto, "DIMENSION", 900)
    monkeypatch.setattr(federated_crypto, "_SAMPLE", 20)
    seen: list[tuple[int, int]] = []
    rows = {
        row.id: row
        for row in federated_crypto.crypto_rows(
            quick=True, out=tmp_path, progress=lambda done, total: seen.append((done, total))
        )
    }
    wanted = {
        "encrypt_vs_phe_2048",
        "bytes_per_weight_n100",
        "key_holder_cpu_vs_before",
    }
    wanted |= {
        f"table2{kind}_vs_phe_{name}" for kind in ("", "_cpu") for name in ("0001", "791", "956")
    }
    wanted |= {
        f"table2_seconds_{name}_{bits}" for name in ("0001", "791", "956") for bits in (1024, 2048)
    }
    assert {f"federated.{name}" for name in wanted} <= rows.keys()
    assert all(math.isfinite(row.value) and row.value > 0 for row in rows.values())
    assert seen[-1] == (5, 5)


def test_the_paper_is_charged_for_shards_times_capacity() -> None:
    assert math.ceil(0.1 * federated_crypto.DIMENSION) == federated_crypto.CAPACITY
    assert [federated_crypto.SHARDS[name] for name in federated_crypto.SPARSITIES] == [10, 3, 1]
    for name, sparsity in federated_crypto.SPARSITIES.items():
        nonzero = (1 - sparsity) * federated_crypto.DIMENSION
        assert math.ceil(nonzero / federated_crypto.CAPACITY) == federated_crypto.SHARDS[name]


def test_a_user_of_each_peer_spends_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "DIMENSION", 5000)
    update = federated_crypto.table2_update(0.956)[:5000]
    for measure in (
        lambda: peers._tenseal(update),
        lambda: peers._tenseal_bfv(update),
        lambda: peers._phe(1024, update, sample=2),
    ):
        seconds, size, note = measure()
        assert seconds > 0
        assert size > 5000
        assert note


def test_every_attack_is_stopped(tmp_path) -> None:
    (row,) = attacks.attack_rows(quick=True, out=tmp_path)
    assert row.value >= 24 and row.unit == f"of {row.value}"
    assert "NOT STOPPED" not in str(row.note)


def test_a_large_run_is_measured_and_exact() -> None:
    run = scale.measure(4, 3000)
    assert run.keys() == {"user", "add", "holder", "open", "check", "bytes", "megabytes"}
    assert min(run.values()) > 0


def test_bytes_per_weight_stay_below_what_is_promised() -> None:
    for users, most in ((5, 2.9), (20, 3.4), (100, 3.6), (1_000, 4.1), (10_000, 4.6)):
        settings = Settings(dimension=federated_crypto.DIMENSION, users=users)
        assert contribution_bytes(settings, settings.dimension) / settings.dimension <= most


def test_present_users_lose_no_work_with_noise_and_little_memory_is_taken() -> None:
    assert scale.work_lost(4, noise=True) == [0, 0, 0, 0]
    assert 0 < scale.work_lost(3, noise=False)[-1] < 0.5
    assert scale.memory_per_user(240, first=40)[0] < 200

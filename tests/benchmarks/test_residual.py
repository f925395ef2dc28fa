"""The residual network of the sketching bench: its inputs, and training that goes on where it was
stopped.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.sketching import residual

torch = pytest.importorskip("torch")


def test_uncertain_pixels_are_drawn_to_their_neighbours_and_certain_ones_stay():
    rng = np.random.default_rng(0)
    down, across = np.mgrid[:32, :32]
    truth = np.stack([100 + 3 * down, 80 + 2 * across, 60 + down + across]).astype(np.float32)
    truth = np.repeat(truth[None], 4, axis=0)
    variances = np.where(rng.random(truth.shape) < 0.15, 900, 0).astype(np.float32)
    means = (truth + rng.normal(size=truth.shape) * np.sqrt(variances)).astype(np.float32)
    found = residual.smoothed(means, variances)
    assert found.dtype == np.float32
    assert np.mean((found - truth) ** 2) < 0.1 * np.mean((means - truth) ** 2)
    known = variances == 0
    assert np.abs(found - truth)[known].max() < 1


def test_training_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(residual, "WIDTHS", (8, 8, 8))
    monkeypatch.setattr(residual, "BATCH", 32)
    rng = np.random.default_rng(1)
    y = torch.from_numpy(rng.integers(2, size=64))
    x = (
        torch.from_numpy(rng.normal(size=(64, 3, 32, 32)).astype(np.float32))
        + y[:, None, None, None]
    )
    whole, *_ = residual.train(x, y, small=2, whole=1, seed=0, folder=tmp_path / "whole")
    control = tmp_path / "epochs"
    control.write_text("1 0")
    residual.train(x, y, small=9, whole=9, seed=0, folder=tmp_path / "parts", control=control)
    parts, spent, epochs = residual.train(x, y, small=2, whole=1, seed=0, folder=tmp_path / "parts")
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.equal(one, other)
    log = (tmp_path / "parts" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in log] == [1, 2, 3] and spent > 0
    assert epochs == (2, 1)


def test_accuracy_counts_right_answers_over_all_views():
    def brighter(view):
        mean = view.mean(dim=(1, 2, 3))
        return torch.stack([-mean, mean], dim=1)

    x = torch.ones(8, 3, 32, 32) * torch.tensor([1.0, -1] * 4)[:, None, None, None]
    y = torch.tensor([1, 0] * 3 + [0, 0])
    for moved in (False, True):
        assert residual.accuracy(brighter, x, y, moved=moved) == 87.5

"""Table 4 on MNIST: NegDL on the network of Abadi et al., and DP-SGD (Opacus) at epsilon 0.5, 2 and 8."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.harness import Row
from benchmarks.sketching.common import Halves, halves, train_pixels, train_sketches
from blindsight.core import checks
from blindsight.sketching import NegativeSketcher

__all__ = ["peer_rows", "table_4_rows"]

PAPER = {0.5: 90.0, 2.0: 95.0, 8.0: 97.0}
# Larger budgets bear more and larger steps.
EPOCHS, BATCH, RATE = 3, 512, {0.5: 0.25, 2.0: 0.5, 8.0: 0.5}


NEGDL = {"original": 98.50, "Q1": 98.11, "Q6": 98.28, "Q12": 98.46}
COMPONENTS, HIDDEN, TABLE_EPOCHS = 60, 1000, 6


def table_4_rows(*, seed: int) -> Iterator[Row]:
    """NegDL on the network of Abadi et al.: 60 principal components, then 1,000 hidden neurons."""
    checks.optional_module("torch", extra="torch")
    sets = halves("mnist", seed=seed)
    options: dict[str, Any] = {"inputs": "mean", "scaling": "unit", "epochs": TABLE_EPOCHS, "random_state": seed}
    for name, paper in NEGDL.items():
        # The server learns the components from what it holds: posterior means.
        if name == "original":
            trained = train_pixels(sets, network=_projected(sets.x[:10_000] / 255), **options)
        else:
            sketcher = NegativeSketcher(name, random_state=seed)
            means = sketcher.fit(sets.x[:2]).sketch(sets.x[:10_000]).pictures() / 255
            trained = train_sketches(sketcher, sets, network=_projected(means), **options)
        yield Row(
            id=f"sketching.table4_{name.lower()}", value=trained.accuracy, unit="%", paper=paper, seed=seed,
            seconds=trained.seconds, note=f"PCA-{COMPONENTS} and {HIDDEN:,} hidden neurons, {TABLE_EPOCHS} epochs on "
            f"{len(sets.x):,} images of {sets.name}",
        )  # fmt: skip


def _projected(pictures: Any) -> Any:
    """A function that makes the network, its projection learned from these pictures and then kept."""
    from sklearn.decomposition import PCA

    flat = np.asarray(pictures, np.float32).reshape(len(pictures), -1)
    found = PCA(COMPONENTS, svd_solver="covariance_eigh").fit(flat)

    def make(channels: int, height: int, width: int, classes: int) -> Any:
        import torch
        from torch import nn

        projection = nn.Linear(flat.shape[1], COMPONENTS)
        with torch.no_grad():
            projection.weight.copy_(torch.from_numpy(found.components_))
            projection.bias.copy_(torch.from_numpy(-found.components_ @ found.mean_))
        projection.requires_grad_(False)
        return nn.Sequential(
            nn.Flatten(), projection, nn.Linear(COMPONENTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes)
        )

    return make


def peer_rows(*, seed: int) -> Iterator[Row]:
    """Another unit than a sketch's leak: DP-SGD protects training records from the model, not from the server."""
    checks.optional_module("opacus", extra="torch")
    sets = halves("mnist", seed=seed)
    for epsilon, paper in PAPER.items():
        start = time.perf_counter()
        accuracy = _dp_sgd(sets, epsilon, seed)
        yield Row(
            id=f"sketching.dpsgd_accuracy_eps{epsilon:g}", value=accuracy, unit="%", paper=paper, seed=seed,
            peer="Opacus", seconds=time.perf_counter() - start,
            note=f"LeNet-5, {EPOCHS} epochs on {len(sets.x):,} images, delta 1e-5, add or remove one record; the "
            "server sees the pixels (paper: PCA-60 and more epochs)",
        )  # fmt: skip


def _dp_sgd(sets: Halves, epsilon: float, seed: int) -> float:
    import torch
    from opacus import PrivacyEngine
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from blindsight.sketching.networks import LeNet5

    x = torch.from_numpy(sets.x[:, None].astype(np.float32) / 255)
    x_test = torch.from_numpy(sets.x_test[:, None].astype(np.float32) / 255)
    shift, scale = float(x.mean()), float(x.std())
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus warns of its own hooks and of its random generator
        torch.manual_seed(seed)
        model: Any = LeNet5(1, 28, 28, 10)
        loader: Any = DataLoader(TensorDataset((x - shift) / scale, torch.from_numpy(sets.y)), BATCH)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=RATE[epsilon], momentum=0.0)
        model, optimizer, loader = PrivacyEngine(accountant="prv").make_private_with_epsilon(
            module=model, optimizer=optimizer, data_loader=loader, epochs=EPOCHS, target_epsilon=epsilon,
            target_delta=1e-5, max_grad_norm=1.0, noise_generator=generator,
        )  # fmt: skip
        for _ in range(EPOCHS):
            for inputs, labels in loader:
                if not len(labels):
                    continue
                loss = nn.functional.cross_entropy(model(inputs), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        model.eval()
        with torch.inference_mode():
            guesses = torch.cat([model((part - shift) / scale).argmax(1) for part in x_test.split(1000)])
    return 100 * float((guesses.numpy() == sets.y_test).mean())

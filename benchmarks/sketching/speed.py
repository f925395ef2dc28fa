"""Races: the direct sampler against Algorithm 1, whole sets, memory, and an epoch on sketches
against one on pixels.
"""

from __future__ import annotations

import functools
import random
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.harness import Row, race
from benchmarks.sketching.common import Halves, halves
from blindsight.core import checks
from blindsight.index.bulk import sketch_to
from blindsight.sketching import NegativeSketcher, QKParameters
from blindsight.sketching.negative_database import hide_image, qk_hidden, sketch_of
from blindsight.sketching.parameters import to_bits

__all__ = ["epoch_rows", "speed_rows"]

MANY = 512


def speed_rows(*, quick: bool, seed: int, out: Path) -> Iterator[Row]:
    """Sketching against the algorithm in Python and in numpy, then a whole set, then memory."""
    sets = halves("mnist", seed=seed)
    parameters = QKParameters.paper("Q6")
    sketcher = NegativeSketcher(parameters, random_state=seed).fit(sets.x[:2])
    bits = to_bits(sets.x[0].ravel(), 8).ravel().tolist()
    many = sets.x[:MANY]

    def records() -> None:
        qk_hidden(bits, parameters, rng=random.Random(seed))

    def counted() -> None:
        sketch_of(qk_hidden(bits, parameters, rng=random.Random(seed)), len(bits))

    def vectorised() -> None:
        hide_image(sets.x[0], parameters, random_state=seed).sketch(8)

    one = NegativeSketcher(parameters, n_jobs=1, random_state=seed).fit(sets.x[:2])
    slow = 1 if quick else 5
    for name, drawer, peer, repeats, clock, words in (
        (
            "vs_naive_algorithm1",
            sketcher,
            records,
            slow,
            time.perf_counter,
            "Algorithm 1 alone, in plain Python",
        ),
        (
            "vs_naive_algorithm1_cpu",
            one,
            records,
            slow,
            time.process_time,
            "Algorithm 1 alone, in plain Python",
        ),
        (
            "vs_naive_algorithms_1_and_2",
            sketcher,
            counted,
            1,
            time.perf_counter,
            "Algorithms 1 and 2, in plain Python",
        ),
        (
            "vs_vectorised_records",
            sketcher,
            vectorised,
            5,
            time.perf_counter,
            "records, then counts, in numpy",
        ),
    ):
        if quick and peer is counted:
            continue
        outcome = race(
            functools.partial(drawer.transform, many), peer, repeats=repeats, clock=clock
        )
        how = "CPU time, one core" if drawer is one else "wall time, all cores"
        yield Row(
            id=f"sketching.{name}",
            value=outcome.ratio * MANY,
            unit="x",
            peer=words,
            seconds=outcome.peer_seconds,
            seed=seed,
            note="an MNIST image: its finished sketch in "
            f"{1e3 * outcome.ours_seconds / MANY:.3f} ms "
            f"({MANY} at once, {how}), the peer in {1e3 * outcome.peer_seconds:.0f} ms",
        )
    yield from _whole_set(sketcher, sets.x[: 5000 if quick else None])
    yield _memory(out, seed)


def _whole_set(sketcher: NegativeSketcher, images: np.ndarray) -> Iterator[Row]:
    start = time.perf_counter()
    sketches = sketcher.sketch(images)
    seconds = time.perf_counter() - start
    yield Row(
        id="sketching.seconds_60000",
        value=seconds * 60000 / len(images),
        unit="s",
        seconds=seconds,
        note=f"60,000 MNIST images sketched (measured on {len(images):,})",
    )
    start = time.perf_counter()
    sketches.means()
    seconds = time.perf_counter() - start
    yield Row(
        id="sketching.estimate_seconds_60000",
        value=seconds * 60000 / len(images),
        unit="s",
        seconds=seconds,
        note="posterior means of all pixels by table; reads "
        f"{sketches.counts.nbytes / seconds / 1e9:.2f} GB/s",
    )


def _memory(out: Path, seed: int) -> Row:
    """Peak memory of sketching n images into a file, for n and 4 n: it does not grow."""
    peaks = []
    for n in (2000, 8000):
        images = np.zeros((n, 28, 28), np.uint8)
        target = out / f"memory-{n}.sketches"
        sketcher = NegativeSketcher("Q3", random_state=seed).fit(images[:2])
        tracemalloc.start()
        sketch_to(target, images, sketcher, block=500)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        target.unlink()
    return Row(
        id="sketching.memory_growth",
        value=peaks[1] / peaks[0],
        unit="x",
        seed=seed,
        note=f"peak at 8,000 images over peak at 2,000, in blocks of 500: {peaks[1] / 1e6:.1f} MB",
    )


def epoch_rows(*, quick: bool, seed: int) -> Iterator[Row]:
    """An epoch on sketches, their estimation included, against a plain epoch on the pixels, in
    turns.
    """
    checks.optional_module("torch", extra="torch")
    from blindsight.sketching.trainer import NegDL

    sets = halves("mnist", seed=seed).first(4000 if quick else 20000)
    sketched = NegativeSketcher("Q6", random_state=seed).fit(sets.x[:2]).sketch(sets.x, sets.y)
    outcome = race(
        lambda: NegDL(inputs="mean", epochs=1, random_state=seed).fit(sketched),
        lambda: _pixel_epoch(sets, seed),
        repeats=3 if quick else 5,
    )
    yield Row(
        id="sketching.epoch_vs_pixels",
        value=1 / outcome.ratio,
        unit="x of the epoch on pixels",
        seconds=outcome.ours_seconds,
        seed=seed,
        peer="the same network in a plain PyTorch loop on the pixels",
        note=f"LeNet-5, {len(sets.x):,} images, estimation from sketches included",
    )


def _pixel_epoch(sets: Halves, seed: int) -> None:
    """One epoch as one would write it for pixels: no code of ours but the network."""
    import torch

    from blindsight.sketching.networks import LeNet5

    x = torch.from_numpy(sets.x[:, None].astype(np.float32) / 255)
    y = torch.from_numpy(sets.y)
    x = (x - x.mean()) / x.std()
    model = LeNet5(1, 28, 28, 10).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)))
    for rows in order.split(128):
        loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

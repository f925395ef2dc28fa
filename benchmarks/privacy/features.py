"""How many images per second become features: by the network, against the earlier way, and from the
cache.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row, race
from blindsight.data import load
from blindsight.encoders import EfficientNet

__all__ = ["feature_rows"]


def feature_rows(
    *,
    quick: bool,
    seed: int = 0,
    out: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Row]:
    """Rows `features.*`: images per second at both sizes, a race against torch as it was used
    before, and the cache.
    """
    digits = load("mnist5k").array()
    rng = np.random.default_rng(seed)
    for size, count in ((96, 128 if quick else 512), (224, 32 if quick else 128)):
        images = digits[rng.choice(len(digits), count, replace=False)]
        seconds = _seconds(lambda size=size, images=images: EfficientNet(size).transform(images))  # type: ignore[misc]
        name = "features.images_per_second" + ("" if size == 96 else f"_{size}")
        yield Row(
            id=name,
            value=count / seconds,
            unit="images/s",
            seed=seed,
            seconds=seconds,
            note=f"EfficientNet-Lite0 at {size} x {size}, one thread, decoding and resizing "
            "included",
        )
    if progress is not None:
        progress(1, 3)
    yield _race_row(digits[: 64 if quick else 256], seed, 2 if quick else 3)
    if progress is not None:
        progress(2, 3)
    yield _cache_row(digits[: 256 if quick else 1024], seed)
    if progress is not None:
        progress(3, 3)


def _race_row(images: NDArray[np.uint8], seed: int, repeats: int) -> Row:
    """Our engine against the way it was done before: torch, channels last, folded, batches of 64,
    one thread.
    """
    import torch

    from blindsight.data import to_rgb
    from blindsight.encoders.network import network

    batch = np.stack([to_rgb(image, 128) for image in images])
    ours, before = network("lite0", 128), _folded_package(128)

    def ours_in_batches() -> None:
        for start in range(0, len(batch), 16):
            ours(batch[start : start + 16])

    def peer() -> None:
        with torch.inference_mode():
            for start in range(0, len(batch), 64):
                x = (
                    torch.from_numpy(batch[start : start + 64])
                    .permute(0, 3, 1, 2)
                    .float()
                    .sub_(127)
                    .div_(128)
                )
                before.extract_features(x).mean(dim=(2, 3)).numpy()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        result = race(ours_in_batches, peer, repeats=repeats, clock=time.process_time)
    finally:
        torch.set_num_threads(threads)
    return Row(
        id="features.images_per_cpu_second_vs_before",
        value=result.ratio,
        unit="times faster",
        peer="torch, batches of 64",
        seed=seed,
        seconds=result.ours_seconds,
        note=f"{len(batch) / result.ours_seconds:.0f} against "
        f"{len(batch) / result.peer_seconds:.0f} images per "
        "CPU-second at 128 x 128",
    )


def _folded_package(size: int) -> Any:
    """The package's own network with its normalisation folded in, channels last: what ran here
    before.
    """
    import torch
    from efficientnet_lite_pytorch import EfficientNet as Plain

    from blindsight.encoders.network import read_weights

    plain = Plain.from_name("efficientnet-lite0", image_size=size).eval().requires_grad_(False)
    plain.load_state_dict({k: torch.from_numpy(v) for k, v in read_weights().items()}, strict=False)
    pairs = [(plain, "_conv_stem", "_bn0"), (plain, "_conv_head", "_bn1")]
    kinds = (("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2"))
    pairs += [
        (block, conv, norm)
        for block in plain._blocks
        for conv, norm in kinds
        if hasattr(block, conv)
    ]
    for owner, conv, norm in pairs:
        setattr(
            owner,
            conv,
            torch.nn.utils.fusion.fuse_conv_bn_eval(getattr(owner, conv), getattr(owner, norm)),
        )
        setattr(owner, norm, torch.nn.Identity())
    return plain.to(memory_format=torch.channels_last)


def _cache_row(images: NDArray[np.uint8], seed: int) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        extractor = EfficientNet(size=32, cache=folder)  # the size does not matter for reading back
        extractor.transform(images)
        seconds = min(_seconds(lambda: extractor.transform(images)) for _ in range(3))
    return Row(
        id="features.cached_images_per_second",
        value=len(images) / seconds,
        unit="images/s",
        seed=seed,
        seconds=seconds,
    )


def _seconds(work: Callable[[], object]) -> float:
    work()  # builds the network, warms caches
    start = time.perf_counter()
    work()
    return time.perf_counter() - start

"""How many images a second become features: by the network, by the same network unprepared, and from the cache."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row, race
from blindsight.data import load
from blindsight.features import EfficientNet

__all__ = ["feature_rows"]


def feature_rows(
    *,
    quick: bool,
    seed: int = 0,
    out: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Row]:
    """Rows `features.*`: images a second at both sizes, a race against the plain network, and the cache."""
    digits = load("mnist5k").array()
    rng = np.random.default_rng(seed)
    for size, count in ((96, 128 if quick else 512), (224, 32 if quick else 128)):
        images = digits[rng.choice(len(digits), count, replace=False)]
        seconds = _seconds(lambda size=size, images=images: EfficientNet(size, cache=False).transform(images))  # type: ignore[misc]
        name = "features.images_per_second" + ("" if size == 96 else f"_{size}")
        yield Row(
            id=name,
            value=count / seconds,
            unit="images/s",
            seed=seed,
            seconds=seconds,
            note=f"EfficientNet-Lite0 at {size} x {size}, one thread, decoding and resizing included",
        )
    if progress is not None:
        progress(1, 3)
    batch = np.repeat(digits[: 16 if quick else 64, :, :, None], 3, axis=3)
    yield _race_row(batch, seed, 3 if quick else 7)
    if progress is not None:
        progress(2, 3)
    yield _cache_row(digits[: 256 if quick else 1024], seed)
    if progress is not None:
        progress(3, 3)


def _race_row(images: NDArray[np.uint8], seed: int, repeats: int) -> Row:
    """Our prepared network against the package's own, same weights, same batch, one thread each."""
    import torch
    from efficientnet_lite_pytorch import EfficientNet as Plain

    from blindsight.data import to_rgb
    from blindsight.features import network
    from blindsight.features.weights import read_weights

    batch = np.stack([to_rgb(image, 96) for image in images])
    prepared = network.build(96)
    plain = Plain.from_name("efficientnet-lite0", image_size=96).eval()
    plain.load_state_dict({k: torch.from_numpy(v) for k, v in read_weights().items()}, strict=False)

    def peer() -> None:
        with torch.inference_mode():
            x = torch.from_numpy(batch).permute(0, 3, 1, 2).float().sub_(127).div_(128).contiguous()
            plain.extract_features(x).mean(dim=(2, 3)).numpy()

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        result = race(lambda: network.run(prepared, batch), peer, repeats=repeats)
    finally:
        torch.set_num_threads(before)
    return Row(
        id="features.network_vs_package",
        value=result.ratio,
        unit="times faster",
        peer="efficientnet_lite_pytorch",
        seed=seed,
        seconds=result.ours_seconds,
        note="normalisation folded into the convolutions, channels last; the same features to 1e-4",
    )


def _cache_row(images: NDArray[np.uint8], seed: int) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        extractor = EfficientNet(size=32, cache=folder)  # the size does not matter for reading back
        extractor.transform(images)
        seconds = min(_seconds(lambda: extractor.transform(images)) for _ in range(3))
    return Row(
        id="features.cached_images_per_second", value=len(images) / seconds, unit="images/s", seed=seed, seconds=seconds
    )


def _seconds(work: Callable[[], object]) -> float:
    work()  # builds the network, warms caches
    start = time.perf_counter()
    work()
    return time.perf_counter() - start

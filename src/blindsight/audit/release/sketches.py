"""Attack the sketches that were sent, with the photos behind them as the truth: what every attacker
makes of them.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from blindsight.audit.release.attacks import half, ranks
from blindsight.audit.report.advice import changes
from blindsight.audit.report.figures import Figure, gallery
from blindsight.audit.report.page import Report
from blindsight.audit.target import audit
from blindsight.core.arrays import Array, Bytes, Floats, Ints
from blindsight.core.errors import InvalidData
from blindsight.data.listing import load_class_folders, load_folder
from blindsight.sketching.attackers import Suite, measure, measured_verdict
from blindsight.sketching.sketches import SketchSet

__all__ = ["audit_sketches"]

_SHOWN, _STEPS = 8, 120
_VALUES = 3_000_000  # pixels times channels that are attacked


def audit_sketches(
    path: str | Path,
    photos: str | Path,
    *,
    most: int = 200,
    steps: int | None = None,
    seed: int = 0,
    trials: int = 200_000,
) -> Report:
    """Rebuild the owner's photos from their sketches by every attacker, one of whom has seen half
    of the photos.

    Parameters:
        path: the file that was sent.
        photos: the folder it was made of, unchanged since.
        most: at most so many photos are looked at, drawn at random.
        steps: how long the attacker learns who has seen half of them.
    """
    held, rng = SketchSet.open(path), np.random.default_rng(seed)
    most = min(most, max(16, _VALUES // math.prod(held.image_shape)))
    places, images = _photos(Path(photos), held, most, rng)
    known = half(len(places), rng)
    suite = Suite(held.parameters, public=images[known], steps=steps or _STEPS, random_state=seed)
    guesses = suite.recover(held[places[~known]])
    asked, depth = images[~known], held.parameters.depth
    found = sorted(
        (measure(name, asked, guess, depth=depth) for name, guess in guesses.items()),
        key=lambda r: -r.psnr,
    )
    mean = np.broadcast_to(images[known].mean(axis=0), asked.shape)
    alone = measure("the mean photo", asked, mean, depth=depth)
    _, first = ranks(-_apart(asked, guesses[found[0].attack]), np.arange(len(asked)))
    top = float(first.mean())
    judged = audit(held, name=Path(path).name, trials=trials, seed=seed)
    rows = [
        {
            "from": r.attack,
            "PSNR in dB": f"{r.psnr:.1f}",
            "SSIM": "" if r.ssim is None else f"{r.ssim:.2f}",
        }
        for r in (*found, alone)
    ]
    scale = 255 / (2.0**depth - 1)
    pictures: dict[str, Array] = {"your photos": asked[:_SHOWN] * scale}
    pictures |= {f"{r.attack}: {r.psnr:.1f} dB": guesses[r.attack][:_SHOWN] * scale for r in found}
    pictures[f"from nothing, the mean photo: {alone.psnr:.1f} dB"] = mean[:_SHOWN] * scale
    return Report(
        title=f"Attack on {Path(path).name}",
        verdicts=[] if judged.verdict is None else [judged.verdict],
        cards=[(judged.name, judged.card)],
        figures=[
            Figure(
                "What comes back of your photos",
                f"{len(asked):,} of your photos as every attacker rebuilds them from what you "
                "sent; the network has "
                f"seen {int(known.sum()):,} others of them. What is no better than the mean photo "
                "tells no more.",
                gallery(pictures, scale=max(1, 64 // asked.shape[2])),
                rows,
            )
        ],
        notes=["Measured on this computer; nothing left it. The page shows photos, so keep it."],
        changes=[*_advice(found[0].psnr, alone.psnr, top, len(asked)), *changes(judged)],
        summary=f"{measured_verdict(found, held.image_shape, missing=suite.missing)} Somebody who "
        "has a copy of a "
        f"photo finds its sketch in {100 * top:.0f} of 100 cases ({100 / len(asked):.1f} by luck).",
    )


def _photos(
    folder: Path, held: SketchSet, most: int, rng: np.random.Generator
) -> tuple[Ints, Bytes]:
    """Places of sketches, and the photos behind them as they were sketched."""
    if not folder.is_dir():
        raise InvalidData(
            f"{folder} is not a folder. Give the photos that were sketched: --photos."
        )
    classes = any(entry.is_dir() and not entry.name.startswith(".") for entry in folder.iterdir())
    images = load_class_folders(folder) if classes else load_folder(folder)
    if len(images) != len(held):
        raise InvalidData(
            f"{folder} holds {len(images):,} photos, the file {len(held):,} sketches: not its "
            "photos."
        )
    places = np.sort(rng.permutation(len(held))[:most])
    if len(places) < 8:
        raise InvalidData(f"an audit needs 8 sketches, here are {len(places)}.")
    channels, height, width = held.image_shape
    chosen = images.take(places)
    array = chosen.array(height) if height == width else chosen.array()
    if channels == 1 and array.ndim == 4:
        array = np.rint(array @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)
    if array.shape[1:3] != (height, width):
        raise InvalidData(f"the photos are of another size than the sketches ({width} x {height}).")
    return places, np.asarray(array >> (8 - min(8, held.parameters.depth)), np.uint8)


def _apart(photos: Array, guesses: Array) -> Floats:
    """Squared distances of photos (rows) and what was rebuilt (columns)."""
    a, b = (np.asarray(images, np.float64).reshape(len(images), -1) for images in (photos, guesses))
    return np.asarray((a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T)


def _advice(psnr: float, alone: float, top: float, n: int) -> list[str]:
    found = []
    if psnr > alone + 1:
        found.append(
            f"look at the pictures: they come back at {psnr:.1f} dB, the mean photo has "
            f"{alone:.1f}. Sketch with a "
            "larger q (--max-psnr sets the goal), or smaller images"
        )
    if top > 10 / n:
        found.append(
            "send sketches only to who may know that a photo is among them: a copy finds its sketch"
        )
    return found

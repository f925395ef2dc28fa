"""Small painted scenes in four kinds, nobody's photographs: what the pictures of the workbench
show.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

__all__ = ["KINDS", "album", "scene"]

KINDS = ("city", "desert", "forest", "harbour")
_SIZE = (360, 270)


def album(folder: Path, each: int = 30) -> Path:
    """A folder of scenes, in one subfolder for each kind."""
    for number, kind in enumerate(KINDS):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for n in range(each):
            scene(kind, np.random.default_rng([number, n])).save(
                folder / kind / f"IMG_{1000 * number + n:04}.jpg"
            )
    return folder


def scene(kind: str, rng: np.random.Generator) -> Image.Image:
    """One scene; what varies is the light, the horizon and what stands where."""
    paint = {"city": _city, "desert": _desert, "forest": _forest, "harbour": _harbour}[kind]
    image = paint(rng).filter(ImageFilter.GaussianBlur(0.8))
    grain = np.asarray(image, np.float64) + rng.normal(0, 5, (_SIZE[1], _SIZE[0], 1))
    return Image.fromarray(np.clip(grain, 0, 255).astype(np.uint8))


def _sky(
    rng: np.random.Generator, high: tuple[int, int, int], low: tuple[int, int, int]
) -> Image.Image:
    share = np.linspace(0, 1, _SIZE[1])[:, None, None] ** rng.uniform(0.7, 1.6)
    tint = rng.normal(0, 12, 3)
    pixels = (1 - share) * (np.array(high) + tint) + share * (np.array(low) + tint)
    return Image.fromarray(
        np.broadcast_to(np.clip(pixels, 0, 255), (_SIZE[1], _SIZE[0], 3)).astype(np.uint8)
    )


def _hills(
    draw: ImageDraw.ImageDraw,
    rng: np.random.Generator,
    top: float,
    height: float,
    fill: tuple[int, ...],
) -> None:
    x = np.linspace(0, _SIZE[0], 60)
    waves = sum(np.sin(x / rng.uniform(25, 90) + rng.uniform(0, 6)) for _ in range(3)) / 3
    points = [(float(a), float(top - height * b)) for a, b in zip(x, waves, strict=True)]
    draw.polygon([*points, (_SIZE[0], _SIZE[1]), (0, _SIZE[1])], fill=fill)


def _harbour(rng: np.random.Generator) -> Image.Image:
    image = _sky(rng, (110, 170, 225), (238, 214, 190))
    draw, line = ImageDraw.Draw(image), int(rng.integers(110, 160))
    _hills(draw, rng, line, 18, (96, 116, 138))
    draw.rectangle((0, line, *_SIZE), fill=(36, 92, 138))
    for _ in range(60):
        x, y = int(rng.integers(0, _SIZE[0])), int(rng.integers(line + 6, _SIZE[1]))
        draw.line((x, y, x + int(rng.integers(8, 40)), y), fill=(92, 150, 190))
    for _ in range(int(rng.integers(2, 6))):
        x, y, s = (
            int(rng.integers(20, 320)),
            int(rng.integers(line + 12, 250)),
            float(rng.uniform(0.6, 1.7)),
        )
        hull = tuple(int(v) for v in rng.integers(60, 240, 3))
        draw.polygon(
            [(x - 26 * s, y), (x + 26 * s, y), (x + 17 * s, y + 11 * s), (x - 18 * s, y + 11 * s)],
            fill=hull,
        )
        draw.line((x, y, x, y - 46 * s), fill=(70, 54, 44), width=2)
        draw.polygon(
            [(x + 2, y - 44 * s), (x + 2, y - 5), (x + 24 * s, y - 5)], fill=(246, 244, 236)
        )
    return image


def _forest(rng: np.random.Generator) -> Image.Image:
    image = _sky(rng, (150, 200, 235), (226, 236, 220))
    draw = ImageDraw.Draw(image)
    _hills(draw, rng, 150, 34, (118, 152, 128))
    _hills(draw, rng, 190, 16, (84, 134, 70))
    for y in sorted(int(v) for v in rng.integers(150, 265, int(rng.integers(14, 26)))):
        x, s = int(rng.integers(0, _SIZE[0])), (y - 90) / 90
        green = (int(rng.integers(20, 60)), int(rng.integers(80, 130)), int(rng.integers(30, 70)))
        draw.rectangle((x - 3 * s, y - 10 * s, x + 3 * s, y), fill=(84, 60, 40))
        for k in range(3):
            base = y - (8 + 20 * k) * s
            draw.polygon(
                [(x - (24 - 5 * k) * s, base), (x + (24 - 5 * k) * s, base), (x, base - 36 * s)],
                fill=green,
            )
    return image


def _city(rng: np.random.Generator) -> Image.Image:
    image = _sky(rng, (12, 18, 46), (70, 52, 96))
    draw = ImageDraw.Draw(image)
    x = 0
    while x < _SIZE[0]:
        wide, high = int(rng.integers(24, 58)), int(rng.integers(70, 210))
        draw.rectangle(
            (x, _SIZE[1] - high, x + wide, _SIZE[1]),
            fill=tuple(int(v) for v in rng.integers(18, 52, 3)),
        )
        for row in range(_SIZE[1] - high + 8, _SIZE[1] - 8, 13):
            for column in range(x + 5, x + wide - 6, 10):
                if rng.random() < 0.5:
                    draw.rectangle(
                        (column, row, column + 4, row + 6),
                        fill=(255, int(rng.integers(190, 240)), 120),
                    )
        x += wide + int(rng.integers(0, 8))
    return image


def _desert(rng: np.random.Generator) -> Image.Image:
    image = _sky(rng, (96, 160, 215), (250, 206, 150))
    draw = ImageDraw.Draw(image)
    x, y, r = int(rng.integers(40, 320)), int(rng.integers(30, 90)), int(rng.integers(14, 28))
    draw.ellipse((x - r, y - r, x + r, y + r), fill=(255, 240, 190))
    for top, colour in ((150, (222, 166, 104)), (190, (206, 146, 84)), (228, (184, 124, 66))):
        _hills(draw, rng, top, 22, colour)
    for _ in range(int(rng.integers(0, 4))):
        x, y = int(rng.integers(20, 340)), int(rng.integers(180, 250))
        draw.line((x, y, x, y - 34), fill=(58, 104, 62), width=7)
        draw.line((x, y - 18, x + 13, y - 18, x + 13, y - 30), fill=(58, 104, 62), width=5)
    return image

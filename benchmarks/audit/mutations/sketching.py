"""Bugs to plant in sketching."""
# ruff: noqa: E501  (the replaced text is one line where the source has one)

from __future__ import annotations

from benchmarks.audit.mutations.mutant import Mutant, bugs

__all__ = ["EARLY", "LATE"]

EARLY: tuple[Mutant, ...] = ()

#: written after the engine was finished.
LATE: tuple[Mutant, ...] = (
    *bugs(
        "sketching/estimator.py",
        (
            "late-sketching-plain-cell",
            "return door.release(CELL, cells)",
            "door.release(CELL, cells)\n        return cells",
            "sketching:TestCodebookSketcher",
        ),
        (
            "late-sketching-low-bits-bare",
            "released = door.release(PIXEL, images)",
            "released = (door.release(PIXEL, images) & 14) | (images & 1)",
            "sketching:TestFlippedBits",
        ),
        (
            "late-sketching-shape-by-content",
            '"image_shape": [int(size) for size in self._inside(X).shape[1:]]}',
            '"image_shape": [int(size) for size in self._inside(X).shape[1:]]}\n        self.released_mean_ = 0\n        self.epsilon = float(self.epsilon) + 1e-6 * float(np.mean(X))',
            "sketching:TestFlippedBits",
        ),
    ),
    *bugs(
        "sketching/guarantee.py",
        (
            "late-sketching-one-bit-priced",
            "math.fsum(bit.epsilon_per_bit for bit in self._bits)",
            "max(bit.epsilon_per_bit for bit in self._bits)",
            "sketching:TestFlippedBits",
        ),
        (
            "late-sketching-first-bit-bare",
            "for j, bit in enumerate(self._bits):\n            planes",
            "for j, bit in list(enumerate(self._bits))[1:]:\n            planes",
            "sketching:TestFlippedBits",
        ),
    ),
    *bugs(
        "sketching/sketches.py",
        (
            "last-sketching-one-name",
            "hashlib.sha256(head + np.ascontiguousarray(image).tobytes()).digest()",
            "hashlib.sha256(head).digest()",
            "sketching:TestFlippedBits sketching:TestPermanentFlips",
        ),
    ),
    *bugs(
        "sketching/estimator.py",
        (
            "last-sketching-refuses-bright",
            "images = np.clip(images, 0, 2**self.depth - 1)",
            "images = images + 0",
            "sketching:TestFlippedBits",
        ),
    ),
    *bugs(
        "sketching/estimator.py",
        (
            "blind-sketching-prototypes-drift",
            "        cells = self.nearest(X)\n        what",
            '        cells = self.nearest(X)\n        self.public_["prototypes"] = self.public_["prototypes"] + np.float32(1e-3 * np.mean(X))\n        what',
            "sketching:TestCodebookSketcher",
        ),
    ),
)

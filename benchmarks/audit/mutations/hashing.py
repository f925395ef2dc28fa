"""Bugs to plant in hashing and codebooks."""
# ruff: noqa: E501  (the replaced text is one line where the source has one)

from __future__ import annotations

from benchmarks.audit.mutations.mutant import Mutant, bugs

__all__ = ["EARLY", "LATE"]

EARLY: tuple[Mutant, ...] = (
    *bugs(
        "hashing/moments.py",
        (
            "hashing-exact-mean",
            'door.total("mean", X) / len(X)',
            "np.asarray(X, np.float64).mean(axis=0)",
            "hashing:TestPITQ",
        ),
        (
            "hashing-exact-cell-weights",
            "weights = np.maximum(counts, 1) / np.maximum(counts, 1).sum()",
            "weights = np.maximum(member.sum(axis=0), 1) / len(X)",
            "hashing:TestPrivateCodebook",
        ),
        (
            "hashing-last-centres-bare",
            "centres[full] = sums[full] / counts[full, None]",
            "centres[full] = (member.T @ X)[full] / counts[full, None]",
            "hashing:TestPrivateCodebook",
        ),
    ),
    *bugs(
        "hashing/cells.py",
        (
            "hashing-second-moment-unclipped",
            "moments.second(clip_norm(Z - mean, 1.0), door)",
            "moments.second(Z - mean, door)",
            "hashing:TestPrivateCodebook",
        ),
        (
            "hashing-counts-of-replacement",
            'Share("cell counts", 0.25 * left, math.sqrt(2), k, steps)',
            'Share("cell counts", 0.25 * left, 0.7, k, steps)',
            "hashing:TestPrivateCodebook",
        ),
        (
            "hashing-constant-column-unscaled",
            "np.ones((len(G), 1))], axis=1) / np.sqrt(2)",
            "np.ones((len(G), 1))], axis=1)",
            "hashing:TestPrivateSupervisedCodebook",
        ),
    ),
    *bugs(
        "hashing/pitq.py",
        (
            "pitq-unclipped",
            "centred = clip_norm(X - self.mean_, self.clip)",
            "centred = X - self.mean_",
            "hashing:TestPITQ",
        ),
        (
            "pitq-exact-rotation",
            "R = procrustes(moments.cross(U, V, door))",
            "R = procrustes(U.T @ V)",
            "hashing:TestPITQ",
        ),
        ("pitq-sensitivity-by-root-2", "math.sqrt(2) * self.clip**2, d", "self.clip**2, d", "hashing:TestPITQ"),
    ),
    *bugs(
        "hashing/phashing.py",
        (
            "phashing-plain-codes",
            "            door.release(CODE, bits)\n            if names is None",
            "            bits\n            if names is None",
            "hashing:TestPHashing",
        ),
        (
            "phashing-first-code-bare",
            '        return codes.pack(self._release(bits, f"',
            '        return np.concatenate([self.query(X)[:1], codes.pack(self._release(bits, "x", ledger, names))[1:]])\n        return codes.pack(self._release(bits, f"',
            "hashing:TestPHashing",
        ),
    ),
    *bugs(
        "hashing/sampling.py",
        (
            "sampling-positions-by-value",
            "drawn = self._positions(len(bits), names)",
            "drawn = np.argsort(-bits.astype(int), axis=1)[:, : self.mechanism_.n_bits]",
            "hashing:TestSampledPHashing",
        ),
        (
            "sampling-other-bits-bare",
            "mask, flipped = np.zeros((2, *bits.shape), dtype=np.uint8)",
            "mask, flipped = np.zeros(bits.shape, dtype=np.uint8), bits.astype(np.uint8)",
            "hashing:TestSampledPHashing",
        ),
    ),
    *bugs(
        "hashing/privunit.py",
        (
            "privunit-a-millionth-of-the-truth",
            "            door.release(CODE, u)\n            if names is None",
            "            door.release(CODE, u) + 1e-6 * u\n            if names is None",
            "hashing:TestPrivUnitHasher",
        ),
    ),
)

#: written after the engine was finished.
LATE: tuple[Mutant, ...] = (
    *bugs(
        "hashing/codebook.py",
        (
            "late-codebook-true-cells",
            "return codes.pack(\n            door.release(CODE, cells)\n",
            "released = door.release(CODE, cells)\n        released[np.arange(len(cells)), cells] = True\n        return codes.pack(\n            released\n",
            "hashing:TestCodebookHasher",
        ),
        (
            "late-codebook-noise-by-count",
            "k = self._private_cells(len(X))",
            "k = min(self._private_cells(len(X)), len(np.unique(X, axis=0)))",
            "hashing:TestPrivateCodebook",
        ),
    ),
    *bugs(
        "hashing/cells.py",
        (
            "late-cells-start-from-the-data",
            "moments.clusters(points, _start(points.shape[1], k, link, rng), _STEPS, door)",
            "moments.clusters(points, points[:k], _STEPS, door)",
            "hashing:TestPrivateCodebook",
        ),
    ),
    *bugs(
        "hashing/pitq.py",
        (
            "late-pitq-cross-sensitivity",
            "2 * math.sqrt(self.n_bits) * self.clip, axes",
            "math.sqrt(self.n_bits) * self.clip / 2, axes",
            "hashing:TestPITQ",
        ),
        (
            "late-pitq-mean-of-the-data",
            "self.mean_ = moments.mean(X, door)",
            "self.mean_ = moments.mean(X, door) + 1e-3 * X[0]",
            "hashing:TestPITQ",
        ),
    ),
)

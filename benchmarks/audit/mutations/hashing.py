"""Bugs to plant in hashing and codebooks."""

from __future__ import annotations

from benchmarks.audit.mutations.mutant import Mutant, bugs

__all__ = ["EARLY", "LATE"]

EARLY: tuple[Mutant, ...] = (
    *bugs(
        "hashing/guarantee.py",
        (
            "hashing-exact-mean",
            'door.total("mean", X) / len(X)',
            "np.asarray(X, np.float64).mean(axis=0)",
            "hashing:TestPITQ",
        ),
    ),
    *bugs(
        "hashing/estimator.py",
        (
            "hashing-exact-cell-weights",
            'door.release("cell counts", _members(G, centres).sum(axis=0))',
            "_members(G, centres).sum(axis=0)",
            "hashing:TestPrivateCodebook",
        ),
        (
            "hashing-last-centres-bare",
            'unit_rows(door.total("cell sums", Outer(_members(G, centres), G)))',
            "unit_rows(_members(G, centres).T @ G)",
            "hashing:TestPrivateCodebook",
        ),
        (
            "hashing-second-moment-unclipped",
            "points = clip_norm(embedding(X), 1.0)",
            "points = np.asarray(X, np.float64) @ axes - around",
            "hashing:TestPrivateCodebook",
        ),
        (
            "hashing-counts-of-replacement",
            'Share("cell counts", 0.1, math.sqrt(2), k)',
            'Share("cell counts", 0.1, 0.7, k)',
            "hashing:TestPrivateCodebook",
        ),
        (
            "hashing-constant-column-unscaled",
            "np.ones((len(G), 1))], axis=1) / math.sqrt(2)",
            "np.ones((len(G), 1))], axis=1)",
            "hashing:TestPrivateSupervisedCodebook",
        ),
    ),
    *bugs(
        "hashing/paper.py",
        (
            "pitq-unclipped",
            "centred = clip_norm(X - mean, self.clip)",
            "centred = X - mean",
            "hashing:TestPITQ",
        ),
        (
            "pitq-exact-rotation",
            "R = procrustes(private_cross_moment(U, V, door))",
            "R = procrustes(U.T @ V)",
            "hashing:TestPITQ",
        ),
        (
            "pitq-sensitivity-by-root-2",
            "math.sqrt(2) * self.clip**2, d",
            "self.clip**2, d",
            "hashing:TestPITQ",
        ),
    ),
    *bugs(
        "hashing/guarantee.py",
        (
            "phashing-plain-codes",
            "random_state=source).release(CODE, values)",
            "random_state=source) and values",
            "hashing:TestPHashing",
        ),
    ),
    *bugs(
        "hashing/paper.py",
        (
            "phashing-first-code-bare",
            "return codes.pack(self._send(bits, what=what, ledger=ledger, names=names, "
            "promised=self.guarantee_))",
            "sent = self._send(bits, what=what, ledger=ledger, names=names, "
            "promised=self.guarantee_)\n"
            "        return np.concatenate([plain[:1], codes.pack(sent)[1:]])",
            "hashing:TestPHashing",
        ),
    ),
)

#: written after the engine was finished.
LATE: tuple[Mutant, ...] = (
    *bugs(
        "hashing/estimator.py",
        (
            "late-codebook-true-cells",
            "return codes.pack(self._send(cells, what=what, ledger=ledger, names=names, "
            "promised=promised))",
            "released = self._send(cells, what=what, ledger=ledger, names=names, "
            "promised=promised)\n"
            "        released[np.arange(len(cells)), cells] = True\n        return "
            "codes.pack(released)",
            "hashing:TestCodebookHasher",
        ),
        (
            "late-codebook-noise-by-count",
            "k = self._how_many(len(X)) if labels is None",
            "k = min(self._how_many(len(X)), len(np.unique(X, axis=0))) if labels is None",
            "hashing:TestPrivateCodebook",
        ),
    ),
    *bugs(
        "hashing/estimator.py",
        (
            "late-cells-start-from-the-data",
            "centres = unit_rows(rng.standard_normal((k, G.shape[1])))",
            "centres = unit_rows(G[:k])",
            "hashing:TestPrivateCodebook",
        ),
    ),
    *bugs(
        "hashing/paper.py",
        (
            "late-pitq-cross-sensitivity",
            "2 * math.sqrt(self.n_bits) * self.clip, axes",
            "math.sqrt(self.n_bits) * self.clip / 2, axes",
            "hashing:TestPITQ",
        ),
        (
            "late-pitq-mean-of-the-data",
            "mean = private_mean(X, door)",
            "mean = private_mean(X, door) + 1e-3 * X[0]",
            "hashing:TestPITQ",
        ),
    ),
    *bugs(
        "hashing/estimator.py",
        (
            "last-cells-ridge-exact",
            "ridge = 1e-2 * len(G) / len(second)",
            "ridge = 1e-2 * float((H**2).sum()) / len(second)",
            "hashing:TestPrivateSupervisedCodebook",
        ),
    ),
    *bugs(
        "index/encoder.py",
        (
            "last-index-true-cells",
            "return to_codes(released, self.codebook.k)",
            "return to_codes(cells, self.codebook.k)",
            "index:TestPhotos",
        ),
    ),
    *bugs(
        "index/bulk.py",
        (
            "last-bulk-one-name-per-shard",
            "labels = digests if part.source is None else [part.records[row] for row in readable]",
            "labels = digests if part.source is None else [part.records[0] for row in readable]",
            "index:TestPhotos index:TestPhotosByFlips",
        ),
    ),
    *bugs(
        "hashing/guarantee.py",
        (
            "blind-hashing-mean-of-the-lit",
            'door.total("mean", X) / len(X)',
            'door.total("mean", X) / max(1, int((np.abs(X).sum(axis=1) > 0).sum()))',
            "hashing:TestPITQ",
        ),
    ),
    *bugs(
        "hashing/paper.py",
        (
            "blind-phashing-title-tells",
            'what = f"{len(bits)} flipped codes of {self.n_bits_} bits"',
            'what = f"{int(bits.sum())} flipped codes of {self.n_bits_} bits"',
            "hashing:TestPHashing",
        ),
    ),
    *bugs(
        "index/encoder.py",
        (
            "blind-index-centred-on-the-batch",
            "        return self.release_rows(names, self.rows(images), source)",
            "        rows = self.rows(images)\n"
            "        return self.release_rows(names, rows - rows.mean(axis=0), source)",
            "index:TestPhotosByFlips",
        ),
    ),
)

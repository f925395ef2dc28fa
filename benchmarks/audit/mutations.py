"""The list of planted bugs: one replacement of text each, and the scenes in which the audit should see it."""
# ruff: noqa: E501  (the replaced text is one line where the source has one)

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EARLY", "LATE", "Mutant"]


@dataclass(frozen=True)
class Mutant:
    """A bug: in which file of the package, which text becomes which, and where it should show ("room:TestCase")."""

    name: str
    path: str
    old: str
    new: str
    scenes: tuple[str, ...]

    def applied(self, text: str) -> str:
        """The file with the bug in it; an error where the text to replace is not there exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: its text occurs {text.count(self.old)} times in {self.path}")
        return text.replace(self.old, self.new)


def _in(path: str, *mutants: tuple[str, str, str, str]) -> tuple[Mutant, ...]:
    return tuple(Mutant(name, path, old, new, tuple(scenes.split())) for name, old, new, scenes in mutants)


_DOOR = _in(
    "privacy/door.py",
    (
        "door-no-clip",
        "np.minimum(1.0, planned.row_bound / np.maximum(norms, 1e-300))",
        "np.ones_like(norms)",
        "privacy:TestSummed",
    ),
    ("door-clip-3%-wide", "planned.row_bound / np", "1.03 * planned.row_bound / np", "privacy:TestSummed"),
    ("door-wrong-norm", "given.norms(order), nan", "given.norms(np.inf), nan", "privacy:TestSummed"),
    (
        "door-twice-the-rate",
        "np.uint64(int(planned.rate * 2**64))",
        "np.uint64(int(min(0.99, 2 * planned.rate) * 2**64))",
        "privacy:TestDescent",
    ),
    (
        "door-batches-of-fixed-size",
        "return np.flatnonzero(drawn)",
        "return np.sort(rng.permutation(n)[: round(planned.rate * n)])",
        "privacy:TestDescent",
    ),
    (
        "door-batches-from-numpy",
        "rng = self._source.stream(label, exact=False)",
        "rng = np.random.default_rng(len(label))",
        "privacy:TestDescent",
    ),
    (
        "door-no-noise",
        "released = mechanism.release(value, rng=rng)\n        if",
        "released = np.asarray(value, np.float64)\n        if",
        "privacy:TestSummed",
    ),
    (
        "door-noise-from-numpy",
        "released = mechanism.release(value, rng=rng)\n        if",
        "released = mechanism.release(value, rng=np.random.default_rng())\n        if",
        "privacy:TestSummed",
    ),
)
_PLAN = _in(
    "privacy/plan.py",
    ("plan-replacement-is-one-step", "times = 2 if", "times = 1 if", "privacy:TestSummed"),
    ("plan-group-forgotten", "reach / (self.group * times)", "reach / times", "privacy:TestGrouped"),
)
_ENTROPY = _in(
    "privacy/entropy.py",
    (
        "entropy-numpy-generator",
        "return SystemEntropy() if exact else aes_generator()",
        "return SystemEntropy() if exact else np.random.default_rng()",
        "privacy:TestGaussian",
    ),
    (
        "entropy-one-key",
        "return SystemEntropy() if exact else aes_generator()",
        'return aes_generator(b"0" * 32)',
        "privacy:TestSummed",
    ),
    ("entropy-32-bits", "os.urandom(32) if secret", "os.urandom(4) * 8 if secret", "privacy:TestGaussian"),
    (
        "entropy-none-means-a-seed",
        "if random_state is None:\n        return SystemSource()",
        "if random_state is None:\n        return SeededSource(0)",
        "privacy:TestSummed",
    ),
    ("entropy-one-byte", "return os.urandom(length)", "return os.urandom(1) * length", "privacy:TestSummed"),
)
_MECHANISMS = (
    *_in(
        "privacy/mechanisms/gaussian.py",
        (
            "gaussian-sigma-by-root-2",
            "noise *= self.sigma",
            "noise *= self.sigma / math.sqrt(2)",
            "privacy:TestGaussian",
        ),
        ("gaussian-curve-halved", "half, shift = 0.5 / ratio", "half, shift = 0.25 / ratio", "privacy:TestGaussian"),
        (
            "discrete-gaussian-price-halved",
            "reach = self.sensitivity / self.grid + ",
            "reach = 0.5 * self.sensitivity / self.grid + ",
            "privacy:TestSummed",
        ),
    ),
    *_in(
        "privacy/mechanisms/convolved.py",
        ("convolved-powers-of-two", "powers = 3 ** np", "powers = 2 ** np", "privacy:TestSummed"),
        (
            "convolved-10%-narrow",
            "return math.sqrt(BASE_VARIANCE * (9**levels - 1) / 8)",
            "return 1.1 * math.sqrt(BASE_VARIANCE * (9**levels - 1) / 8)",
            "privacy:TestSummed",
        ),
    ),
    *_in(
        "privacy/mechanisms/laplace.py",
        ("laplace-quarter", "block *= self.scale", "block *= self.scale / 4", "privacy:TestLaplace"),
        (
            "discrete-laplace-half",
            "discrete_laplace(self.scale, units.size",
            "discrete_laplace(self.scale / 2, units.size",
            "privacy:TestDiscreteLaplace",
        ),
        (
            "laplace-one-sign",
            "bits.astype(np.uint64) << np.uint64(63)",
            "(0 * bits).astype(np.uint64) << np.uint64(63)",
            "privacy:TestLaplace",
        ),
    ),
    *_in(
        "privacy/mechanisms/kary.py",
        (
            "kary-truth-at-twice-epsilon",
            "(-Decimal(epsilon)).exp()",
            "(-2 * Decimal(epsilon)).exp()",
            "privacy:TestLocal",
        ),
        (
            "kary-one-lie",
            "(cells.astype(np.int64) + shift) % self.k",
            "(cells.astype(np.int64) + 1) % self.k",
            "privacy:TestLocal",
        ),
    ),
    *_in(
        "privacy/mechanisms/flip.py",
        ("flip-half-the-beta", "math.ceil(self.beta * 2**64)", "math.ceil(self.beta / 2 * 2**64)", "privacy:TestFlips"),
        (
            "flip-per-bit-for-per-record",
            'times = self.n_bits if self.unit == "record" else 1\n        return Cost',
            "times = 1\n        return Cost",
            "privacy:TestFlips",
        ),
    ),
    *_in(
        "privacy/mechanisms/duchi.py",
        (
            "duchi-twice-epsilon",
            "+ self.epsilon * (k > d / 2)",
            "+ 2 * self.epsilon * (k > d / 2)",
            "privacy:TestDuchi",
        ),
    ),
    *_in(
        "privacy/mechanisms/staircase.py",
        (
            "staircase-steeper",
            "rng.geometric(-math.expm1(-self.epsilon)",
            "rng.geometric(-math.expm1(-2 * self.epsilon)",
            "privacy:TestStaircase",
        ),
    ),
    *_in(
        "privacy/mechanisms/topk.py",
        (
            "topk-half-the-noise",
            "noisy = scores / self.scale + noise",
            "noisy = 2 * scores / self.scale + noise",
            "privacy:TestTop",
        ),
    ),
)
_ACCOUNTING = _in(
    "privacy/accounting.py",
    (
        "account-half-the-rate",
        "binom.pmf(rows, item.group, item.rate)",
        "binom.pmf(rows, item.group, item.rate / 2)",
        "privacy:TestDescent",
    ),
    (
        "account-one-step",
        "closed_form(math.sqrt(math.fsum(item.count * _mu(item) ** 2 for item in releases)), delta)",
        "closed_form(math.sqrt(math.fsum(_mu(item) ** 2 for item in releases)), delta)",
        "privacy:TestDescent",
    ),
)
_HASHING = (
    *_in(
        "hashing/moments.py",
        (
            "hashing-exact-mean",
            'door.total("mean", X) / len(X)',
            "np.asarray(X, np.float64).mean(axis=0)",
            "hashing:TestPITQ",
        ),
    ),
    *_in(
        "hashing/private_cells.py",
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
    *_in(
        "hashing/pitq.py",
        (
            "pitq-unclipped",
            "centred = clip_norm(X - mean, self.clip)",
            "centred = X - mean",
            "hashing:TestPITQ",
        ),
        (
            "pitq-exact-rotation",
            "R = procrustes(moments.cross(U, V, door))",
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
    *_in(
        "hashing/releasing.py",
        ("phashing-plain-codes", "return door.release(CODE, values)", "return values", "hashing:TestPHashing"),
    ),
    *_in(
        "hashing/phashing.py",
        (
            "phashing-first-code-bare",
            "return codes.pack(self._send(bits, what=what, ledger=ledger, names=names, promised=self.guarantee_))",
            "sent = self._send(bits, what=what, ledger=ledger, names=names, promised=self.guarantee_)\n"
            "        return np.concatenate([plain[:1], codes.pack(sent)[1:]])",
            "hashing:TestPHashing",
        ),
    ),
    *_in(
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
    *_in(
        "hashing/privunit.py",
        (
            "privunit-a-millionth-of-the-truth",
            "return sent.astype(np.float32)",
            "return (sent + 1e-6 * u).astype(np.float32)",
            "hashing:TestPrivUnitHasher",
        ),
    ),
)
_METRIC = (
    *_in(
        "metric/estimator.py",
        ("metric-exact-margin", 'door.total("margin", data.far())', "data.far().sum(axis=0)", "metric:TestContrastive"),
        (
            "metric-exact-distances",
            'counts = door.total("distances", data.distances(W, edges))',
            "counts = data.distances(W, edges).weighted_sum(np.ones(len(data)))",
            "metric:TestMoments",
        ),
        (
            "metric-exact-column-sizes",
            'counts = door.total("column sizes", data.spread())',
            "counts = data.spread().weighted_sum(np.ones(len(data)))",
            "metric:TestAuto",
        ),
        (
            "metric-edges-from-the-data",
            "edges = np.linspace(0, 3 * max(typical, 1e-12), BINS + 1)",
            "edges = np.linspace(0, 1e-9 + float(np.abs(data.differences @ W.T).max()), BINS + 1)",
            "metric:TestMoments",
        ),
        (
            "metric-refuses-one-kind",
            "        kappa = self._kappa(graph)\n",
            '        if graph.similar.all():\n            raise InvalidData("all pairs are similar")\n        kappa = self._kappa(graph)\n',
            "metric:TestContrastive",
        ),
        (
            "metric-kappa-from-labels",
            "        kappa = self._kappa(graph)\n",
            "        kappa = self._kappa(graph) + int(graph.similar.sum())\n",
            "metric:TestContrastive",
        ),
    ),
    *_in(
        "metric/outer.py",
        (
            "metric-gradients-not-clipped",
            "return _frobenius(self.left, self.right) if order == 2 else _absolute(self.left, self.right)",
            "return np.full(len(self.left), 1e-9)",
            "metric:TestContrastive metric:TestTriplet metric:TestNPair",
        ),
    ),
    *_in(
        "metric/promise.py",
        (
            "metric-group-forgotten",
            "return Planned(what=what, mechanism=mechanism, count=count, group=group)",
            "return Planned(what=what, mechanism=mechanism, count=count)",
            "metric:TestRecord",
        ),
    ),
)
_TAGGING = (
    *_in(
        "tagging/estimator.py",
        (
            "tagging-exact-counts",
            "total(COUNTS, labels.astype(np.float64))",
            "labels.sum(axis=0).astype(np.float64)",
            "tagging:TestTraining",
        ),
        (
            "tagging-exact-centre",
            "total(CENTRE, unit_rows(rows)) / facts.n_records",
            "unit_rows(rows).astype(np.float64).mean(axis=0)",
            "tagging:TestTraining",
        ),
        (
            "tagging-exact-spread",
            "moments = total(SPREAD, Outer(seen, seen))",
            "moments = seen.T @ seen",
            "tagging:TestTrainingOfWords",
        ),
        (
            "tagging-counts-the-labelled",
            "self._set_public(len(rows), rows.shape[1]",
            "self._set_public(int(labels.any(axis=1).sum()) + 1, rows.shape[1]",
            "tagging:TestTraining",
        ),
        (
            "tagging-first-answer-bare",
            "        return way.read(released, self.n_labels_) if",
            "        released[:1] = way.value(np.asarray(logits, np.float64))[:1]\n        return way.read(released, self.n_labels_) if",
            "tagging:TestGaussianAnswers",
        ),
    ),
    *_in(
        "tagging/label_graph.py",
        (
            "tagging-graph-unclipped",
            "noisy = door.total(_COUNTS, Outer(y, y))",
            "noisy = door.release(_COUNTS, y.T @ y)",
            "tagging:TestLabelGraph",
        ),
    ),
    *_in(
        "tagging/answers.py",
        (
            "tagging-laplace-half-sensitivity",
            "sensitivity=2 * self.bound * n_labels,",
            "sensitivity=self.bound * n_labels / 2,",
            "tagging:TestLaplaceAnswers",
        ),
        (
            "tagging-gaussian-one-label",
            "2 * self.bound * math.sqrt(n_labels)",
            "self.bound",
            "tagging:TestGaussianAnswers",
        ),
        (
            "tagging-top-half-sensitivity",
            "sensitivity=2 * self.bound, unit",
            "sensitivity=self.bound / 2, unit",
            "tagging:TestTopTags",
        ),
        (
            "tagging-logits-unclipped",
            "return np.clip(logits, -self.bound, self.bound)",
            "return logits",
            "tagging:TestLaplaceAnswers",
        ),
    ),
)
_FEDERATED = (
    *_in(
        "federated/noise.py",
        (
            "federated-one-share",
            "for _ in range(self.shares):",
            "for _ in range(1):",
            "federated:TestFederatedClassifier",
        ),
        (
            "federated-sensitivity-off-by-two",
            "(1 + 1e-9) * (2 * self.clip / self.step)",
            "(1 + 1e-9) * (self.clip / self.step)",
            "federated:TestFederatedClassifier",
        ),
        (
            "federated-unclipped",
            "update * min(1.0, clip / norm) if norm > 0 else update",
            "update * min(1.0, 2 * clip / norm) if norm > 0 else update",
            "federated:TestFederatedClassifier",
        ),
    ),
    *_in(
        "federated/estimator.py",
        (
            "federated-classes-from-labels",
            '"classes": classes.tolist(),',
            '"classes": [*classes.tolist()[:-1], *sorted(set(np.asarray(y).tolist()))[-1:]],',
            "federated:TestFederatedClassifier",
        ),
        (
            "federated-saves-accuracy",
            "        return self._settle_in()",
            '        self.released_["accuracy"] = float(self.rounds_[-1].accuracy or 0)\n        return self._settle_in()',
            "federated:TestFederatedClassifier",
        ),
    ),
)

#: written while the engine was built.
EARLY: tuple[Mutant, ...] = (
    *_DOOR,
    *_PLAN,
    *_ENTROPY,
    *_MECHANISMS,
    *_ACCOUNTING,
    *_HASHING,
    *_METRIC,
    *_TAGGING,
    *_FEDERATED,
)
#: written after it was finished, and never used to change it.
LATE: tuple[Mutant, ...] = (
    *_in(
        "privacy/door.py",
        ("late-door-clips-the-sum", "weights *= 1 - 1e-12", "weights = np.ones_like(weights)", "privacy:TestSummed"),
        (
            "late-door-forgets-the-last-row",
            "released = mechanism.release(value, rng=rng)\n        if",
            "released = mechanism.release(value, rng=rng)\n        released.flat[-1] = value.flat[-1]\n        if",
            "privacy:TestSummed",
        ),
        (
            "late-door-rounds-noise-away",
            "released = mechanism.release(value, rng=rng)\n        if",
            "released = value + np.sign(mechanism.release(value, rng=rng) - value)\n        if",
            "privacy:TestSummed",
        ),
        (
            "late-door-sample-halves",
            "return np.flatnonzero(drawn)",
            "return np.flatnonzero(drawn | np.roll(drawn, 1))",
            "privacy:TestDescent",
        ),
        (
            "late-door-outer-norm",
            "np.linalg.norm(self.left, ord=order, axis=1) * np",
            "np.abs(self.left).max(axis=1) * np",
            "tagging:TestLabelGraph",
        ),
    ),
    *_in(
        "privacy/mechanisms/gaussian.py",
        ("late-gaussian-2%-small", "noise *= self.sigma", "noise *= 0.98 * self.sigma", "privacy:TestGaussian"),
        (
            "late-gaussian-shares-noise",
            "noise = rng.standard_normal(values.shape)",
            "noise = rng.standard_normal(values.shape[:-1])[..., None] * np.ones(values.shape)",
            "privacy:TestGaussian",
        ),
        (
            "late-discrete-noise-twice",
            "convolved_gaussian(self.levels, units.size, rng=rng)",
            "convolved_gaussian(self.levels - 1, units.size, rng=rng)",
            "privacy:TestSummed",
        ),
    ),
    *_in(
        "privacy/mechanisms/privunit.py",
        (
            "late-privunit-cap-more-often",
            "inside = rng.random(len(u)) < p",
            "inside = rng.random(len(u)) < 1.02 * p",
            "privacy:TestPrivUnit",
        ),
    ),
    *_in(
        "privacy/mechanisms/kary.py",
        (
            "late-subset-twice-epsilon",
            "lie_threshold(self.epsilon, Fraction",
            "lie_threshold(2 * self.epsilon, Fraction",
            "privacy:TestSubset",
        ),
    ),
    *_in(
        "privacy/mechanisms/laplace.py",
        (
            "late-discrete-laplace-rounding-uncounted",
            "(self.sensitivity - self.dimensions) * self.grid, 1)",
            "self.sensitivity * self.grid, 1)",
            "privacy:TestDiscreteLaplace",
        ),
    ),
    *_in(
        "privacy/accounting.py",
        (
            "late-account-pure-is-free",
            "epsilon += _gaussian_plan_epsilon(tuple(gaussian), left)",
            "epsilon += 0.9 * _gaussian_plan_epsilon(tuple(gaussian), left)",
            "privacy:TestSummed",
        ),
    ),
    *_in(
        "privacy/estimator.py",
        (
            "late-save-writes-attributes",
            'fields: dict[str, Any] = {"parameters": self._saved_parameters()}',
            'fields: dict[str, Any] = {"parameters": self._saved_parameters()}\n        arrays["owner"] = np.atleast_1d(np.asarray(list(getattr(self, "owner_only_", {}).values()), float))',
            "tagging:TestTraining",
        ),
    ),
    *_in(
        "hashing/estimator.py",
        (
            "late-codebook-true-cells",
            "return codes.pack(self._send(cells, what=what, ledger=ledger, names=names, promised=promised))",
            "released = self._send(cells, what=what, ledger=ledger, names=names, promised=promised)\n"
            "        released[np.arange(len(cells)), cells] = True\n        return codes.pack(released)",
            "hashing:TestCodebookHasher",
        ),
        (
            "late-codebook-noise-by-count",
            "k = self._how_many(len(X)) if labels is None",
            "k = min(self._how_many(len(X)), len(np.unique(X, axis=0))) if labels is None",
            "hashing:TestPrivateCodebook",
        ),
    ),
    *_in(
        "hashing/private_cells.py",
        (
            "late-cells-start-from-the-data",
            "centres = unit_rows(rng.standard_normal((k, G.shape[1])))",
            "centres = unit_rows(G[:k])",
            "hashing:TestPrivateCodebook",
        ),
    ),
    *_in(
        "hashing/pitq.py",
        (
            "late-pitq-cross-sensitivity",
            "2 * math.sqrt(self.n_bits) * self.clip, axes",
            "math.sqrt(self.n_bits) * self.clip / 2, axes",
            "hashing:TestPITQ",
        ),
        (
            "late-pitq-mean-of-the-data",
            "mean = moments.mean(X, door)",
            "mean = moments.mean(X, door) + 1e-3 * X[0]",
            "hashing:TestPITQ",
        ),
    ),
    *_in(
        "metric/estimator.py",
        (
            "late-metric-scale-from-pairs",
            "prepared = data.prepared(self._stretch(columns), self._norm())",
            'prepared = data.prepared(self._stretch(columns) / (1 + np.abs(data.records).max()), "none")',
            "metric:TestContrastive",
        ),
        (
            "late-metric-typical-from-data",
            'typical=1.0 if loss == "moments" else _typical(W))',
            "typical=float(np.abs(prepared.differences).mean()) + 1e-6)",
            "metric:TestMoments",
        ),
        (
            "late-metric-title-tells",
            'what=f"metric from {len(data)} pairs"',
            'what=f"metric from {int(data.alike.sum())} pairs"',
            "metric:TestContrastive",
        ),
    ),
    *_in(
        "metric/moments.py",
        (
            "late-metric-count-unbounded",
            "counts.append(COUNT * weight.sum())",
            "counts.append(8 * COUNT * weight.sum())",
            "metric:TestMoments",
        ),
    ),
    *_in(
        "tagging/estimator.py",
        (
            "late-tagging-last-gradient-bare",
            'found["weights"] = descend(',
            'found["start"] = (labels.T @ rows[:, :1]).astype(float)\n        found["weights"] = descend(',
            "tagging:TestTraining",
        ),
        (
            "late-tagging-rates-exact",
            'rates = _rates(found["counts"], facts.n_records)',
            "rates = _rates(labels.sum(axis=0), facts.n_records)",
            "tagging:TestTraining",
        ),
    ),
    *_in(
        "tagging/answer_spread.py",
        (
            "late-tagging-spread-unclipped",
            "inside = clip_norm(away / (_REACH * math.sqrt(len(directions))), 1.0)",
            "inside = away",
            "tagging:TestTrainingOfWords",
        ),
    ),
    *_in(
        "federated/noise.py",
        (
            "late-federated-levels",
            "convolved_gaussian(self.levels, steps.size, rng=rng)",
            "convolved_gaussian(max(1, self.levels - 1), steps.size, rng=rng)",
            "federated:TestFederatedClassifier",
        ),
        (
            "late-federated-one-user-unclipped",
            "norm = float(np.linalg.norm(update)) * (1 + 1e-9)",
            "norm = float(np.abs(update).max()) * (1 + 1e-9)",
            "federated:TestFederatedClassifier",
        ),
    ),
    *_in(
        "sketching/estimator.py",
        (
            "late-sketching-plain-cell",
            "return door.release(CELL, cells)",
            "door.release(CELL, cells)\n        return cells",
            "sketching:TestCodebookSketcher",
        ),
        (
            "late-sketching-low-bits-bare",
            "ones = np.moveaxis(to_bits(door.release(PIXEL, images), self.parameters_.depth), -1, 2)",
            "ones = np.moveaxis(to_bits((door.release(PIXEL, images) & 14) | (images & 1), self.parameters_.depth), -1, 2)",
            "sketching:TestFlippedBits",
        ),
        (
            "late-sketching-shape-by-content",
            '"image_shape": [int(size) for size in self._inside(X).shape[1:]]}',
            '"image_shape": [int(size) for size in self._inside(X).shape[1:]]}\n        self.released_mean_ = 0\n        self.epsilon = float(self.epsilon) + 1e-6 * float(np.mean(X))',
            "sketching:TestFlippedBits",
        ),
    ),
    *_in(
        "sketching/promise.py",
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
)

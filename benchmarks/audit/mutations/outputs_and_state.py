"""Bugs in outputs, state, identity and units, written after the engine compared every output.

Each is caught when the audit refutes one of its scenes, or else when one of its tests fails.
"""

from __future__ import annotations

from benchmarks.audit.mutations.mutant import Mutant, bugs

__all__ = ["NEW"]

_LOG = '__import__("logging").getLogger("blindsight.x")'
_OWNER = 'getattr(self, "owner_only_", {}).get("records that were not finite", 0)'

NEW: tuple[Mutant, ...] = (
    *bugs(
        "privacy/door.py",
        (
            "new-door-bare-when-nobody-listens",
            "released = mechanism.release(value, rng=rng)\n        self",
            "bare = type(self._listener).__name__ == '_NullListener'\n"
            "        released = value if bare else mechanism.release(\n"
            "            value, rng=rng)\n"
            "        self",
            "privacy:TestSummed",
        ),
        (
            "new-door-records-bare-when-nobody-listens",
            "parts.append(planned.mechanism.release(value[None], rng=rng))",
            "parts.append(value[None] if type(self._listener).__name__[0] == '_' else "
            "planned.mechanism.release(value[None], rng=rng))",
            "hashing:TestPermanentNoise",
        ),
        (
            "new-door-less-noise-when-nobody-listens",
            "released = mechanism.release(value, rng=rng)\n        self",
            "released = mechanism.release(value, rng=rng)\n"
            "        if not hasattr(self._listener, 'openings') and released.dtype.kind == 'f':\n"
            "            released = (released + 9 * value) / 10\n        self",
            "privacy:TestSummed",
        ),
        (
            "new-door-prints-the-value",
            "released = mechanism.release(value, rng=rng)\n        self",
            "print(float(np.sum(value)))\n        released = mechanism.release(\n"
            "            value, rng=rng)\n"
            "        self",
            "privacy:TestSummed",
        ),
        (
            "new-door-logs-the-largest-norm",
            "weights = np.where(np.isfinite(norms), shrunk, 0.0)",
            f"{_LOG}.debug('%s', norms.max())\n"
            "        weights = np.where(np.isfinite(norms), shrunk, 0.0)",
            "privacy:TestSummed",
        ),
        (
            "new-door-warns-of-clipped-rows",
            "weights = np.where(np.isfinite(norms), shrunk, 0.0)",
            "warnings.warn(f'{int((shrunk < 1).sum())} rows were clipped', stacklevel=2)\n"
            "        weights = np.where(np.isfinite(norms), shrunk, 0.0)",
            "privacy:TestSummed",
        ),
        (
            "new-door-raises-on-unusable-rows",
            "weights = np.where(np.isfinite(norms), shrunk, 0.0)",
            "if not np.isfinite(norms).all():\n            raise InvalidParameter('a row is "
            "infinite.')\n        weights = np.where(np.isfinite(norms), shrunk, 0.0)",
            "privacy:TestSummed",
        ),
        (
            "new-door-counts-no-release",
            "self._used[what] += 1",
            "self._used[what] += 0",
            "privacy:TestTwice",
            "tests/privacy/test_door.py",
        ),
        (
            "new-door-with-a-key-is-free",
            "self._charge(ledger, key)\n        self._listener",
            "self._charge(ledger if key is None else None, key)\n        self._listener",
            "hashing:TestPermanentNoise",
        ),
        (
            "new-door-charges-one-account",
            "ledger.charge(self.guarantee.costs,",
            "ledger.charge(self.guarantee.costs[:1],",
            "metric:TestMoments",
        ),
        (
            "new-door-titles-are-paid-once",
            "what=self.what, key=key)",
            "what=self.what, key=self.what)",
            "hashing:TestPermanentNoise",
        ),
        (
            "new-door-charges-a-tenth",
            "ledger.charge(self.guarantee.costs,",
            "ledger.charge([replace(cost, epsilon=cost.epsilon / 10) for cost in "
            "self.guarantee.costs],",
            "privacy:TestSummed",
        ),
        (
            "new-each-name-of-the-first",
            'f"{name}/{function}/{seal}"',
            'f"{names[0]}/{function}/{seal}"',
            "hashing:TestPermanentNoise",
        ),
        (
            "new-each-seal-of-the-first",
            "np.ascontiguousarray(value).tobytes()",
            "np.ascontiguousarray(inside[0]).tobytes()",
            "hashing:TestPermanentNoise",
        ),
        (
            "new-each-copies-have-their-own-value",
            "inside = given[first_rows]",
            "inside = given",
            "index:TestPhotos",
            "tests/privacy/test_door.py",
        ),
        (
            "new-total-clips-all-by-the-longest",
            "shrunk = np.minimum(1.0, FILLED * planned.row_bound / np.maximum(norms, 1e-300))",
            "shrunk = np.minimum(1.0, FILLED * planned.row_bound / np.maximum("
            "np.where(np.isfinite(norms), norms, 0).max(initial=1e-300), 1e-300)) "
            "+ np.zeros_like(norms)",
            "privacy:TestSummed",
        ),
    ),
    *bugs(
        "privacy/accounting.py",
        (
            "new-plan-replaced-counts-once",
            "times = 2 if self.mechanism.neighbours == 'replace one' else 1".replace("'", '"'),
            "times = 1",
            "privacy:TestSummed",
        ),
        (
            "new-plan-group-forgotten",
            "self.mechanism.domain.reach / (self.group * times)",
            "self.mechanism.domain.reach / times",
            "privacy:TestGrouped",
        ),
    ),
    *bugs(
        "privacy/accounting.py",
        (
            "new-account-pure-releases-once",
            "math.fsum(item.count * item.mechanism.cost.epsilon for item in pure)",
            "math.fsum(item.mechanism.cost.epsilon for item in pure)",
            "privacy:TestTwice",
        ),
        (
            "new-account-first-mechanism-only",
            "math.fsum(item.count * _mu(item) ** 2 for item in releases)",
            "math.fsum(item.count * _mu(item) ** 2 for item in releases[:1])",
            "metric:TestContrastive hashing:TestPrivateCodebook",
        ),
    ),
    *bugs(
        "privacy/ledger/amounts.py",
        (
            "new-ledger-rounds-down-to-whole-epsilons",
            "math.ceil(_exact(cost.epsilon) * MICRO)",
            "math.floor(_exact(cost.epsilon)) * MICRO",
            "privacy:TestSummed",
        ),
    ),
    *bugs(
        "privacy/door.py",
        (
            "new-clip-by-the-longest",
            "array * (limit / np.maximum(norm, limit))",
            "array * (limit / np.maximum(norm.max(), limit))",
            "hashing:TestPITQ",
        ),
        (
            "new-unusable-rows-are-dropped",
            "return np.where(usable, values, np.zeros((), values.dtype))",
            "return values[usable[..., 0]]",
            "hashing:TestPHashing",
        ),
        (
            "new-only-nan-is-unusable",
            "~(usable & (smallest.astype(np.float64) >= -LARGEST_FEATURE))",
            "np.isnan(values).any(axis=-1)",
            "hashing:TestPHashing",
        ),
    ),
    *bugs(
        "privacy/estimator.py",
        (
            "new-save-time-tells",
            "storage.save(path, kind=self._kind, arrays=arrays, fields=fields)",
            "storage.save(path, kind=self._kind, arrays=arrays, fields=fields)\n"
            f"        __import__('os').utime(path, (0, {_OWNER}))",
            "tagging:TestTraining",
        ),
        (
            "new-save-mode-tells",
            "storage.save(path, kind=self._kind, arrays=arrays, fields=fields)",
            "storage.save(path, kind=self._kind, arrays=arrays, fields=fields)\n"
            f"        Path(path).chmod(0o600 + {_OWNER})",
            "tagging:TestTraining",
        ),
        (
            "new-save-keeps-the-owners-notes",
            'fields["guarantee"] = json.loads(self.guarantee_.to_json())',
            f"fields['public']['unusable'] = {_OWNER}\n"
            '        fields["guarantee"] = json.loads(self.guarantee_.to_json())',
            "tagging:TestTraining",
        ),
        (
            "new-save-keeps-a-clock",
            'fields["guarantee"] = json.loads(self.guarantee_.to_json())',
            "fields['public']['at'] = __import__('time').time()\n"
            '        fields["guarantee"] = json.loads(self.guarantee_.to_json())',
            "privacy:TestSummed",
        ),
        (
            "new-load-believes-any-guarantee",
            "if stated != due:",
            "if stated is None:",
            "",
            "tests/metric/test_estimator.py::"
            "test_a_file_that_promises_more_than_its_parameters_is_refused",
        ),
    ),
    *bugs(
        "privacy/mechanisms/kary.py",
        (
            "new-kary-lies-may-be-true",
            "shift = rng.integers(1, self.k, size=cells.shape, dtype=np.int64)",
            "shift = rng.integers(0, self.k, size=cells.shape, dtype=np.int64)",
            "privacy:TestLocal",
        ),
    ),
    *bugs(
        "privacy/mechanisms/kary.py",
        (
            "new-flip-one-mask-for-all-records",
            "mask = self._mask(bits.size, rng).reshape(bits.shape)",
            "mask = np.broadcast_to(self._mask(bits.shape[-1], rng), bits.shape)",
            "privacy:TestFlips",
        ),
    ),
    *bugs(
        "hashing/paper.py",
        (
            "new-phashing-prints-bits",
            "bits = codes.unpack(plain, self.n_bits_)",
            "bits = codes.unpack(plain, self.n_bits_)\n        print(int(bits.sum()), 'bits')",
            "hashing:TestPHashing",
        ),
        (
            "new-phashing-releases-distinct-codes",
            "bits = codes.unpack(plain, self.n_bits_)",
            "bits = np.unique(codes.unpack(plain, self.n_bits_), axis=0)",
            "hashing:TestPHashing",
        ),
        (
            "new-phashing-refuses-unusable-records",
            "return self._flipped(self.query(finite_rows(X)), ledger, names)",
            "return self._flipped(self.query(X), ledger, names)",
            "hashing:TestPHashing",
        ),
    ),
    *bugs(
        "hashing/estimator.py",
        (
            "new-codebook-logs-its-cells",
            "cells = self.assign(finite_rows(X))",
            f"cells = self.assign(finite_rows(X))\n        {_LOG}.info('%s', np.bincount(cells))",
            "hashing:TestCodebookHasher",
        ),
        (
            "new-codebook-keeps-its-cells",
            "cells = self.assign(finite_rows(X))",
            "cells = self.cells_ = self.assign(finite_rows(X))",
            "hashing:TestPrivateCodebook",
        ),
        (
            "new-codebook-sorts-its-cells",
            "cells = self.assign(finite_rows(X))",
            "cells = np.sort(self.assign(finite_rows(X)))",
            "hashing:TestCodebookHasher",
        ),
        (
            "new-codebook-title-counts-cells",
            'what = f"cells of {len(cells)} images, {self.n_cells_} cells"',
            'what = f"cells of {len(cells)} images, {len(set(cells.tolist()))} cells"',
            "hashing:TestCodebookHasher",
        ),
        (
            "new-codebook-refuses-unusable-records",
            "cells = self.assign(finite_rows(X))",
            "cells = self.assign(X)",
            "hashing:TestCodebookHasher",
        ),
    ),
    *bugs(
        "hashing/paper.py",
        (
            "new-pitq-keeps-the-largest-feature",
            'self.public_ = {"n_features": rows.shape[1]}',
            'self.public_ = {"n_features": rows.shape[1]}\n'
            "        self.reach_ = float(np.abs(rows).max())",
            "hashing:TestPITQ",
        ),
    ),
    *bugs(
        "tagging/training.py",
        (
            "new-tagging-progress-tells",
            "progress(number + 1, steps)",
            "progress(number + 1, steps + int(1e3 * abs(float(residuals.sum()))))",
            "tagging:TestTraining",
        ),
    ),
    *bugs(
        "tagging/estimator.py",
        (
            "new-tagging-refuses-unused-labels",
            "public = len(rows) if n_records is None else checks.whole",
            "if not labels.any(axis=0).all():\n"
            '            raise InvalidData("a label never occurs.")\n'
            "        public = len(rows) if n_records is None else checks.whole",
            "tagging:TestTraining",
        ),
        (
            "new-tagging-answers-refuse-unusable-records",
            "rows, _ = private_rows(X, n_features=self.n_features_in_)\n        scores",
            "rows = feature_rows(X, n_features=self.n_features_in_)\n        scores",
            "tagging:TestLaplaceAnswers",
        ),
        (
            "new-tagging-logits-to-standard-error",
            'door = Door(\n            promised,\n            what=f"tags of',
            "print(float(np.max(values)), file=__import__('sys').stderr)\n"
            '        door = Door(\n            promised,\n            what=f"tags of',
            "tagging:TestLaplaceAnswers",
        ),
    ),
    *bugs(
        "tagging/photos.py",
    ),
    *bugs(
        "metric/linear.py",
        (
            "new-metric-refuses-unusable-records",
            'finite_rows(checks.number_array("pairs", array))',
            'checks.finite_array("pairs", array)',
            "metric:TestMoments",
        ),
    ),
    *bugs(
        "metric/estimator.py",
        (
            "new-metric-environment-tells",
            "self.guarantee_, self.public_ = guarantee, public",
            "__import__('os').environ['BLINDSIGHT_PAIRS'] = str(int(data.alike.sum()))\n"
            "        self.guarantee_, self.public_ = guarantee, public",
            "metric:TestMoments",
        ),
        (
            "new-metric-warns-of-few-similar-pairs",
            "self.guarantee_, self.public_ = guarantee, public",
            "warnings.warn(f'{data.alike.mean():.2f} of the pairs are similar', stacklevel=2)\n"
            "        self.guarantee_, self.public_ = guarantee, public",
            "metric:TestMoments",
        ),
    ),
    *bugs(
        "metric/losses.py",
        (
            "new-metric-progress-tells",
            "progress(tau + 1, steps)",
            "progress(tau + 1, steps + int(1e3 * abs(float(loss.clipped_sum(W, clip).sum()))))",
            "metric:TestContrastive",
        ),
    ),
    *bugs(
        "app/protect.py",
        (
            "new-thumbnails-in-the-release",
            "        return ProtectedPhotos(\n            release=target,",
            "        from blindsight.data import read_image\n"
            "        from blindsight.index.contact_sheet import thumbnail\n"
            "        with (target / 'README.md').open('ab') as readme:\n"
            "            for path in sorted(Path(source).rglob('*.png')):\n"
            "                readme.write(thumbnail(read_image(path)))\n"
            "        return ProtectedPhotos(\n            release=target,",
            "index:TestPhotos",
        ),
        (
            "new-file-sizes-in-the-release",
            "        return ProtectedPhotos(\n            release=target,",
            "        sizes = sorted(p.stat().st_size for p in Path(source).rglob('*.png'))\n"
            "        with (target / 'README.md').open('a') as readme:\n"
            "            readme.write(str(sizes))\n"
            "        return ProtectedPhotos(\n            release=target,",
            "index:TestPhotos",
        ),
    ),
    *bugs(
        "index/release_folder.py",
        (
            "new-names-printed",
            "            index.compact(without=out)\n        refused,",
            "            index.compact(without=out)\n        print(names)\n        refused,",
            "index:TestPhotos",
        ),
    ),
    *bugs(
        "index/encoder.py",
        (
            "new-index-title-counts-cells",
            'what = f"cells of {len(cells)} images"',
            'what = f"cells of {len(set(cells.tolist()))} images"',
            "index:TestPhotos",
        ),
        (
            "new-index-refuses-unusable-records",
            "cells = self.codebook.assign(finite_rows(X))",
            "cells = self.codebook.assign(checks.finite_array('X', X))",
            "index:TestEmbeddings",
        ),
    ),
    *bugs(
        "sketching/estimator.py",
        (
            "new-flips-scaled-by-the-brightest",
            "images = np.clip(images, 0, 2**self.depth - 1)",
            "images = (images * ((2**self.depth - 1) / max(1, images.max()))).astype(int)\n"
            "            images = np.clip(images, 0, 2**self.depth - 1)",
            "sketching:TestFlippedBits",
        ),
    ),
    *bugs(
        "sketching/sketches.py",
        (
            "new-permanent-names-by-one-pixel",
            "np.ascontiguousarray(image).tobytes()",
            "np.ascontiguousarray(image.reshape(-1)[:1]).tobytes()",
            "sketching:TestPermanentFlips",
            "tests/sketching/test_permanent.py",
        ),
    ),
    *bugs(
        "federated/noise.py",
        (
            "new-federated-refuses-unusable-updates",
            'values = finite_rows(checks.number_array("update", update, ndim=1)[None])[0]\n'
            "# Scaled slightly more than needed, so that floating-point rounding cannot lengthen "
            "it.",
            'values = checks.finite_array("update", update, ndim=1)',
            "federated:TestFederatedClassifier federated:TestUsers",
        ),
    ),
    *bugs(
        "federated/estimator.py",
        (
            "new-federated-prints-its-accuracy",
            'self.released_ = {"weights": linear.shaped(weights, X.shape[1])}',
            'self.released_ = {"weights": linear.shaped(weights, X.shape[1])}\n'
            "        print(self.rounds_[-1])",
            "federated:TestFederatedClassifier",
        ),
    ),
)

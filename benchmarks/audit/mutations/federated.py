"""Bugs to plant in the federation."""
# ruff: noqa: E501  (the replaced text is one line where the source has one)

from __future__ import annotations

from benchmarks.audit.mutations.mutant import Mutant, bugs

__all__ = ["EARLY", "LATE"]

EARLY: tuple[Mutant, ...] = (
    *bugs(
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
            "values * min(1.0, self.clip / norm) if norm > 0 else values",
            "values * min(1.0, 2 * self.clip / norm) if norm > 0 else values",
            "federated:TestFederatedClassifier",
        ),
    ),
    *bugs(
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

#: written after the engine was finished.
LATE: tuple[Mutant, ...] = (
    *bugs(
        "federated/noise.py",
        (
            "late-federated-levels",
            "convolved_gaussian(self.levels, steps.size, rng=rng)",
            "convolved_gaussian(max(1, self.levels - 1), steps.size, rng=rng)",
            "federated:TestFederatedClassifier",
        ),
        (
            "late-federated-one-user-unclipped",
            "norm = float(np.linalg.norm(values)) * (1 + 1e-9)",
            "norm = float(np.abs(values).max()) * (1 + 1e-9)",
            "federated:TestFederatedClassifier",
        ),
    ),
    *bugs(
        "federated/noise.py",
        (
            "last-federated-share-cut-off",
            "return inside + convolved_gaussian(self.levels, inside.size, rng=rng)",
            "return inside + np.clip(convolved_gaussian(self.levels, inside.size, rng=rng), -9, 9)",
            "federated:TestFederatedClassifier federated:TestUsers",
        ),
    ),
    *bugs(
        "federated/estimator.py",
        (
            "blind-federated-scale-of-the-data",
            '"scale": _scale(public, X.shape[1]),',
            '"scale": _scale((X, y), X.shape[1]),',
            "federated:TestFederatedClassifier",
        ),
    ),
)

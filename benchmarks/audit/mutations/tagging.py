"""Bugs to plant in tagging."""
# ruff: noqa: E501  (the replaced text is one line where the source has one)

from __future__ import annotations

from benchmarks.audit.mutations.mutant import Mutant, bugs

__all__ = ["EARLY", "LATE"]

EARLY: tuple[Mutant, ...] = (
    *bugs(
        "tagging/learning.py",
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
            "moments = total(SPREAD, Outer(projected, projected))",
            "moments = projected.T @ projected",
            "tagging:TestTrainingOfWords",
        ),
    ),
    *bugs(
        "tagging/estimator.py",
        (
            "tagging-counts-the-labelled",
            "self._set_public(public, rows.shape[1]",
            "self._set_public(int(labels.any(axis=1).sum()) + 1, rows.shape[1]",
            "tagging:TestTraining",
        ),
        (
            "tagging-first-answer-bare",
            "return mechanism.read(door.release(guarantees.ANSWER, values))",
            "released = door.release(guarantees.ANSWER, values)\n"
            "        released[:1] = values[:1]\n        return mechanism.read(released)",
            "tagging:TestLaplaceAnswers",
        ),
    ),
    *bugs(
        "tagging/gcn.py",
        (
            "tagging-graph-unclipped",
            "noisy = door.total(_COUNTS, Outer(y, y))",
            "noisy = door.release(_COUNTS, y.T @ y)",
            "tagging:TestLabelGraph",
        ),
    ),
    *bugs(
        "tagging/guarantee.py",
        (
            "tagging-laplace-half-sensitivity",
            "sensitivity=2 * self.bound * n_labels,",
            "sensitivity=self.bound * n_labels / 2,",
            "tagging:TestLaplaceAnswers",
        ),
        (
            "tagging-logits-unclipped",
            "return np.clip(logits, -self.bound, self.bound)",
            "return logits",
            "tagging:TestLaplaceAnswers",
        ),
    ),
)

#: written after the engine was finished.
LATE: tuple[Mutant, ...] = (
    *bugs(
        "tagging/learning.py",
        (
            "late-tagging-last-gradient-bare",
            'released["weights"] = descend(',
            'released["start"] = (labels.T @ rows[:, :1]).astype(float)\n    released["weights"] = descend(',
            "tagging:TestTraining",
        ),
        (
            "late-tagging-rates-exact",
            'rates = label_rates(released["counts"], facts.n_records)',
            "rates = label_rates(labels.sum(axis=0), facts.n_records)",
            "tagging:TestTraining",
        ),
    ),
    *bugs(
        "tagging/answer_codebook.py",
        (
            "late-tagging-spread-unclipped",
            "inside = clip_norm(away / (_REACH * math.sqrt(len(directions))), 1.0)",
            "inside = away",
            "tagging:TestTrainingOfWords",
        ),
    ),
    *bugs(
        "tagging/training.py",
        (
            "last-tagging-mean-of-labelled",
            "total(residuals, x) / n_records +",
            "total(residuals, x) / max(1, int(labelled.any(axis=1).sum())) +",
            "tagging:TestTraining",
        ),
    ),
    *bugs(
        "tagging/estimator.py",
        (
            "blind-tagging-tags-of-logits",
            "return mechanism.read(door.release(guarantees.ANSWER, values))",
            "told = mechanism.read(door.release(guarantees.ANSWER, values))\n"
            "        return Answers(mechanism.read(np.asarray(logits)).tags, told.scores)",
            "tagging:TestLaplaceAnswers",
        ),
    ),
)

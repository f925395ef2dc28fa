"""Bugs to plant in metric learning."""
# ruff: noqa: E501  (the replaced text is one line where the source has one)

from __future__ import annotations

from benchmarks.audit.mutations.mutant import Mutant, bugs

__all__ = ["EARLY", "LATE"]

EARLY: tuple[Mutant, ...] = (
    *bugs(
        "metric/estimator.py",
        (
            "metric-exact-margin",
            'door.total("margin", data.far())',
            "data.far().sum(axis=0)",
            "metric:TestContrastive",
        ),
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
            "edges = np.linspace(0, max(farthest, 1e-12), bins + 1)",
            "edges = np.linspace(0, 1e-9 + float(np.abs(data.differences).max()), bins + 1)",
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
    *bugs(
        "metric/losses.py",
        (
            "metric-gradients-not-clipped",
            "return _frobenius(self.left, self.right) if order == 2 else _absolute(self.left, self.right)",
            "return np.full(len(self.left), 1e-9)",
            "metric:TestContrastive metric:TestTriplet",
        ),
    ),
    *bugs(
        "metric/guarantee.py",
        (
            "metric-group-forgotten",
            "return Planned(what=what, mechanism=mechanism, count=count, group=group, change=change)",
            "return Planned(what=what, mechanism=mechanism, count=count, change=change)",
            "metric:TestRecord metric:TestRecordDescent",
        ),
    ),
)

#: written after the engine was finished.
LATE: tuple[Mutant, ...] = (
    *bugs(
        "metric/estimator.py",
        (
            "late-metric-scale-from-pairs",
            "prepared = data.prepared(self._stretch(columns), self._norm())",
            'prepared = data.prepared(self._stretch(columns) / (1 + np.abs(data.records).max()), "none")',
            "metric:TestContrastive",
        ),
        (
            "late-metric-typical-from-data",
            'farthest=3.0 if loss == "moments" else 3 * _typical(W))',
            "farthest=3 * float(np.abs(prepared.differences).mean()) + 1e-6)",
            "metric:TestMoments",
        ),
        (
            "late-metric-title-tells",
            'what=f"metric from {len(data)} ',
            'what=f"metric from {int(data.alike.sum())} ',
            "metric:TestContrastive",
        ),
    ),
    *bugs(
        "metric/moments.py",
        (
            "late-metric-count-unbounded",
            "counts.append(COUNT * weight.sum())",
            "counts.append(8 * COUNT * weight.sum())",
            "metric:TestMoments",
        ),
    ),
    *bugs(
        "metric/estimator.py",
        (
            "last-metric-margin-by-count",
            '_sigma(door, "margin"), len(data))',
            '_sigma(door, "margin"), int((~data.alike).sum()))',
            "metric:TestContrastive",
        ),
    ),
    *bugs(
        "metric/estimator.py",
        (
            "blind-metric-counts-the-alike",
            '"n_pairs": len(numbers),',
            '"n_pairs": int(alike.any(axis=1).sum()) + 2,',
            "metric:TestContrastive",
        ),
    ),
)

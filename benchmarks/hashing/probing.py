"""Multi-probe search (Lv et al. 2007): ask for the query's code and for those it nearly had."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks, codes

__all__ = ["multi_probe_distances", "probes"]


def probes(projection: ArrayLike, n_probes: int) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """The `n_probes` codes that cost least to reach from one query's real values (c,), and their
    costs.

    Flipping bit j costs |z_j|; sets of flips come in the order of their total cost, the plain code
    first.
    """
    z = np.asarray(projection, dtype=np.float64).ravel()
    order = np.argsort(np.abs(z), kind="stable")
    price = np.abs(z)[order]
    plain = z >= 0
    found, costs = [plain], [0.0]
    # Every set of flips is reached once: by growing the last flip, or by moving it on (Lv et al.,
    # section 4.4).
    heap: list[tuple[float, tuple[int, ...]]] = [(float(price[0]), (0,))]
    while len(found) < checks.whole("n_probes", n_probes) and heap:
        cost, flips = heapq.heappop(heap)
        code = plain.copy()
        code[order[list(flips)]] ^= True
        found.append(code)
        costs.append(cost)
        last = flips[-1]
        if last + 1 < len(z):
            heapq.heappush(heap, (cost + float(price[last + 1]), (*flips, last + 1)))
            heapq.heappush(
                heap, (cost - float(price[last]) + float(price[last + 1]), (*flips[:-1], last + 1))
            )
    return codes.pack(np.array(found)), np.array(costs)


def multi_probe_distances(
    projections: ArrayLike, stored: ArrayLike, n_probes: int
) -> NDArray[np.float32]:
    """Distances (m, n): to the nearest of each query's probes, a probe's cost counted in average
    bits.
    """
    z: NDArray[Any] = np.atleast_2d(np.asarray(projections, dtype=np.float64))
    distances = np.empty((len(z), len(np.asarray(stored))), dtype=np.float32)
    for row, values in enumerate(z):
        found, costs = probes(values, n_probes)
        scale = max(float(np.abs(values).mean()), np.finfo(np.float64).tiny)
        distances[row] = (codes.hamming(found, stored) + costs[:, None] / scale).min(axis=0)
    return distances

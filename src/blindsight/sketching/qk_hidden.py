"""The QK-hidden algorithm that really makes the records (Algorithm 1), for all records of a string
at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy.entropy import RandomState, training_rng
from blindsight.sketching.bits import to_bits
from blindsight.sketching.negative_database import NegativeDatabase
from blindsight.sketching.parameters import QKParameters

__all__ = ["hide", "hide_image"]


def hide(
    string: ArrayLike,
    parameters: QKParameters,
    *,
    distinct: bool = False,
    random_state: RandomState = None,
) -> NegativeDatabase:
    """The negative database of a bit string: N = m r records of K specified bits.

    `distinct=True` reads the algorithm's union literally (no record twice); by default repeats are
    kept, which is what Equations 4 and 5 assume. Beyond toy strings the two hardly differ.
    """
    bits = np.asarray(string)
    if bits.ndim != 1 or bits.dtype.kind not in "iub" or not np.isin(bits, (0, 1)).all():
        raise InvalidData("string must be one row of bits, 0 or 1.")
    bits = bits.astype(np.uint8)
    if bits.size == 0 or bits.size % parameters.depth:
        raise InvalidParameter(
            f"L (the length of q) must divide the string's {bits.size} bits, got "
            f"{parameters.depth}."
        )
    parameters.check_string(bits.size // parameters.depth)
    rng, _ = training_rng(random_state)
    N = parameters.n_records(bits.size // parameters.depth)
    positions, values = _records(bits, parameters, N, rng)
    if distinct:
        positions, values = _distinct(bits, parameters, N, rng, positions, values)
    offsets = np.arange(N + 1) * parameters.specified
    return NegativeDatabase(bits.size, offsets, positions.ravel(), values.ravel())


def hide_image(
    channel: ArrayLike,
    parameters: QKParameters,
    *,
    random_state: RandomState = None,
    distinct: bool = False,
) -> NegativeDatabase:
    """The negative database of one channel of an image (any shape, whole numbers inside the
    depth).
    """
    pixels = np.asarray(channel)
    top = 2**parameters.depth - 1
    if pixels.dtype.kind not in "iu" or pixels.size == 0 or pixels.min() < 0 or pixels.max() > top:
        raise InvalidData(
            f"a channel must hold whole numbers from 0 to {top} at depth {parameters.depth}."
        )
    bits = to_bits(pixels.ravel(), parameters.depth).ravel()
    return hide(bits, parameters, distinct=distinct, random_state=random_state)


def _records(
    bits: NDArray[Any], parameters: QKParameters, n: int, rng: np.random.Generator
) -> tuple[Any, Any]:
    """n records: positions (n, K), first the differing ones, and the values they show."""
    K = parameters.specified
    types = rng.choice(K, size=n, p=parameters.p) + 1  # steps 6 and 7
    differing = np.arange(K) < types[:, None]
    positions = _positions(differing, bits.size, parameters, rng)
    while True:  # whichever repeats an earlier one of its record is drawn again
        repeats = np.zeros_like(differing)
        for t in range(1, K):
            repeats[:, t] = (positions[:, :t] == positions[:, t : t + 1]).any(axis=1)
        rows = np.flatnonzero(repeats.any(axis=1))
        if not rows.size:
            return positions, bits[positions] ^ differing
        # Only the first repeat of a record: later ones are judged against its new place.
        first = repeats[rows].argmax(axis=1)
        again = _positions(differing[rows, first][:, None], bits.size, parameters, rng)
        positions[rows, first] = again[:, 0]


def _positions(
    differing: NDArray[Any], m: int, parameters: QKParameters, rng: np.random.Generator
) -> NDArray[Any]:
    """Steps 8 and 9: bit j by Q of a random attribute where the record differs, any bit where it
    agrees.
    """
    L = parameters.depth
    by_q = rng.choice(L, size=differing.shape, p=parameters.q) + L * rng.integers(
        0, m // L, size=differing.shape
    )
    return np.where(differing, by_q, rng.integers(0, m, size=differing.shape))


def _distinct(
    bits: NDArray[Any],
    parameters: QKParameters,
    N: int,
    rng: np.random.Generator,
    positions: Any,
    values: Any,
) -> tuple[Any, Any]:
    """Draw records until N different ones are there."""
    for _ in range(1000):
        order = np.argsort(positions, axis=1)
        cells = np.take_along_axis(positions * 2 + values, order, axis=1)
        _, first = np.unique(cells, axis=0, return_index=True)
        if first.size >= N:
            kept = np.sort(first)[:N]
            return positions[kept], values[kept]
        more = _records(bits, parameters, checks.whole("missing", max(N - first.size, 16)), rng)
        kept = np.sort(first)
        positions = np.concatenate([positions[kept], more[0]])
        values = np.concatenate([values[kept], more[1]])
    raise InvalidParameter(
        f"r must be small enough for {N:,} different records of this string to exist."
    )

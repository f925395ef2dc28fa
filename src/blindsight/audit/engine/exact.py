"""(a) Exact likelihood ratios: where a mechanism knows its own distribution, no sampling is
needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import InvalidParameter
from blindsight.privacy import Audited

__all__ = ["exact_epsilon", "likelihood_ratio"]


def exact_epsilon(mechanism: Any, x: Any, neighbour: Any, outcomes: Any) -> Audited:
    """The largest |ln Pr(o | x) - ln Pr(o | neighbour)| over the given outcomes, from the
    mechanism's `log_prob`.

    Outcomes are stacked along the first axis; probabilities of a vector's coordinates multiply.
    """
    listed = np.asarray(outcomes)
    if not len(listed):
        raise InvalidParameter("outcomes must hold at least one outcome, got none.")
    with np.errstate(invalid="ignore"):
        ratio = np.abs(_whole(mechanism, listed, x) - _whole(mechanism, listed, neighbour))
    # Where both are impossible (-inf minus -inf) the outcome never happens and tells nothing.
    largest = float(np.nanmax(np.nan_to_num(ratio, nan=0.0, posinf=np.inf)))
    return Audited(
        epsilon=largest, confidence=1.0, attack="exact likelihood ratio", trials=len(listed)
    )


def likelihood_ratio(mechanism: Any, released: Any, x: Any, neighbour: Any) -> NDArray[np.float64]:
    """ln Pr(released | x) - ln Pr(released | neighbour) of every release: the best statistic there
    is.
    """
    listed = np.asarray(released)
    return _whole(mechanism, listed, x) - _whole(mechanism, listed, neighbour)


def _whole(mechanism: Any, outcomes: NDArray[Any], x: Any) -> NDArray[np.float64]:
    value = np.asarray(x)
    parts = np.asarray(
        mechanism.log_prob(outcomes, np.broadcast_to(value, (len(outcomes), *value.shape)))
    )
    return np.asarray(parts.reshape(len(outcomes), -1).sum(axis=1), np.float64)

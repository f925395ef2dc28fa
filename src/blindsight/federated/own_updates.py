"""Federated learning for two sites, which cannot use a secure sum: each sends a noisy update.

From a sum of two updates each site learns the other's update by subtracting its own. So each site
clips its update, adds the whole noise to it (not a share of it), and sends the result openly. The
mean therefore has more noise than a secure sum would have. The noise protects against everybody,
without trust in key holders or an aggregator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks, storage
from blindsight.core.errors import HostileFile, InvalidData
from blindsight.federated.deploy.plan import Plan
from blindsight.federated.learning import linear, model_digest
from blindsight.federated.noise import GaussianShares
from blindsight.privacy import Guarantee, Ledger
from blindsight.privacy.accounting import Planned
from blindsight.privacy.door import Door
from blindsight.privacy.entropy import RandomState, source_of

__all__ = ["MergedModel", "NoisedUpdate", "merge_updates", "noised_update"]

_KIND = "noised update"
_WHAT = "a site's own update"


@dataclass(frozen=True)
class NoisedUpdate:
    """A site's update with noise, and a digest of the model that it starts from.

    Parameters:
        values: the update, clipped and with noise; public.
        start: a digest of the weights that it starts from.
        epsilon: of the guarantee, for all of the site's rows together.
        delta: of the guarantee.
    """

    values: NDArray[np.float64] = field(repr=False)
    start: str
    epsilon: float
    delta: float

    def save(self, path: str | Path) -> None:
        """Write the file that is sent to the other site."""
        fields = {"start": self.start, "epsilon": self.epsilon, "delta": self.delta}
        storage.save(path, kind=_KIND, arrays={"values": self.values}, fields=fields)

    @classmethod
    def load(cls, path: str | Path) -> NoisedUpdate:
        """Read an untrusted file."""
        arrays, fields = storage.load(path, kind=_KIND)
        try:
            return cls(
                checks.finite_array("values", arrays["values"], ndim=1),
                str(fields["start"]),
                float(fields["epsilon"]),
                float(fields["delta"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise HostileFile(f"{path} does not hold a noised update: {error}.") from error


@dataclass(frozen=True)
class MergedModel:
    """The mean of several sites' updates, added to the weights that they started from."""

    weights: NDArray[np.float64] = field(repr=False)
    plan: Plan = field(repr=False)
    updates: int

    def predict(self, X: NDArray[np.float64]) -> NDArray[np.intp]:
        rows = self.plan.scaled(checks.finite_array("X", X, ndim=2))
        return linear.predicted(linear.shaped(self.weights, self.plan.features), rows)

    def save(self, path: str | Path) -> None:
        """Write weights and scale to a safetensors file."""
        arrays = {"weights": self.weights, "scale": self.plan.scale}
        fields = {"classes": self.plan.classes, "updates": self.updates}
        storage.save(path, kind="merged updates", arrays=arrays, fields=fields)


def noised_update(
    plan: Plan,
    X: NDArray[np.float64],
    y: NDArray[np.int64],
    *,
    epsilon: float,
    delta: float = 1e-5,
    clip: float = 1.0,
    ledger: Ledger | None = None,
    random_state: RandomState = None,
) -> NoisedUpdate:
    """Train on a site's own rows and add noise to the update.

    Parameters:
        plan: the model's shape and start, from public rows; the same at every site.
        X: the site's rows.
        y: their class numbers.
        epsilon: of the guarantee, for all of the site's rows together.
        delta: of the guarantee.
        clip: the largest l2 norm of the update.
        ledger: charged before anything is released.
        random_state: None for the operating system's entropy; a seed makes a simulation.

    Returns:
        The update, to be sent openly.
    """
    update = plan.trainer(X, y, user=1)(plan.initial, 1) - plan.initial
    noise = GaussianShares.calibrate(
        epsilon, delta=delta, clip=clip, dimension=len(update), shares=1
    )
    guarantee = Guarantee(
        releases=(Planned(what=_WHAT, mechanism=noise, count=1),),
        delta=delta,
        model="local",
        entropy=source_of(random_state).name,
    )
    door = Door(guarantee, what=_WHAT, ledger=ledger, random_state=random_state)
    values = door.together(_WHAT, [update], lambda shares: shares[0])
    return NoisedUpdate(values, model_digest(plan.initial).hex(), guarantee.epsilon, delta)


def merge_updates(plan: Plan, updates: Sequence[NoisedUpdate]) -> MergedModel:
    """Add the mean of sites' updates to the weights that they started from.

    Raises:
        InvalidData: an update starts from other weights, or there is none.
    """
    start = model_digest(plan.initial).hex()
    if not updates:
        raise InvalidData("at least one update is needed, got none.")
    for update in updates:
        if update.start != start or update.values.shape != plan.initial.shape:
            raise InvalidData(
                "an update starts from another model: all sites must use the same public rows and "
                "options."
            )
    mean = np.mean([update.values for update in updates], axis=0)
    return MergedModel(plan.initial + mean, plan, len(updates))

"""PITQ (Algorithm 3 of Wang, Lu and Zhang 2020), to the letter, and a version whose promise can be proved.

To the letter, each iteration flips the codes with beta = e^(-epsilon/E), which for E = 50 is 0.92 to 0.995: the
codes are negated, the rotation follows the negation, and the result is plain ITQ. The projection W and the final
codes sign(YWR) are released without any noise. So the paper's epsilon is claimed and none is proven.

Proven: what leaves is W, R and the codes. W comes from a noisy mean and second moment of clipped rows, R from a
noisy U'(YW) in each iteration, all Gaussian and composed exactly, and the codes are flipped before release. With
images that are public, W and R cost nothing and the whole budget goes to the codes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted, validate_data

from blindsight.core import checks, codes
from blindsight.core.errors import InvalidParameter
from blindsight.hashing import moments, paper, saving
from blindsight.hashing.base import Hasher
from blindsight.hashing.moments import NoNoise, Share, Sums
from blindsight.hashing.projection import principal_axes, procrustes, random_rotation
from blindsight.hashing.promise import CODE, ONCE, PUBLIC_NUMBER, Source, flip_guarantee
from blindsight.hashing.saving import require
from blindsight.privacy import Assumption, Cost, Door, Guarantee, Plan
from blindsight.privacy.clipping import clip_norm
from blindsight.privacy.entropy import RandomState, source_of, training_rng
from blindsight.privacy.mechanisms import BitFlip

if TYPE_CHECKING:
    from blindsight.privacy import Ledger

__all__ = ["PITQ"]

Array = NDArray[Any]


class PITQ(Hasher):
    """Private iterative quantisation.

    Parameters
    ----------
    epsilon, delta: the whole budget per record; delta is spent on learning W and R.
    calibration: "proven", or "paper" for Algorithm 3.
    procrustes: "correct" (R = M N' from U'(YW) = N Omega M') or "printed" (R = N N', the identity; "paper" only).
    learned_from: "private" if `fit` sees the protected images, "public" if it sees others.
    learning_share: the share of epsilon that learning W and R may spend, when it is private.
    clip: rows are scaled into the ball of this radius; with clip below the rows' norms, onto it.
    n_iterations: E; by default 50 to the letter, 5 proven (each iteration has its price).

    Guarantee
    ---------
    Proven: (epsilon, delta) per record, replace one, for W, R and the codes together. `fit` charges the ledger for
    learning, `transform` for the codes. The sums that leave have discrete Gaussian noise, so nothing hangs on the low
    bits of a float. Paper: claimed epsilon, proven none.
    """

    _learned: ClassVar[tuple[str, ...]] = ("mean_", "projection_", "rotation_")
    guarantee_: Guarantee

    def __init__(
        self,
        n_bits: int = 32,
        *,
        epsilon: float = 8.0,
        delta: float = 1e-5,
        calibration: Literal["proven", "paper"] = "proven",
        procrustes: Literal["correct", "printed"] = "correct",
        learned_from: Source = "private",
        learning_share: float = 0.25,
        clip: float = 1.0,
        n_iterations: int | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.n_bits = n_bits
        self.epsilon = epsilon
        self.delta = delta
        self.calibration = calibration
        self.procrustes = procrustes
        self.learned_from = learned_from
        self.learning_share = learning_share
        self.clip = clip
        self.n_iterations = n_iterations
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, ledger: Ledger | None = None) -> Self:
        """Learn W and R, charging `ledger` first for what learning from private images costs."""
        self._check()
        X = validate_data(self, X, dtype=(np.float64, np.float32), ensure_min_samples=2)
        self.guarantee_ = self._guarantee(X.shape[1])
        rng, _ = training_rng(self.random_state if self.entropy_ == "seed" else None)
        if self.calibration == "paper":
            Door(self.guarantee_, what="Algorithm 3's rotation", ledger=ledger, random_state=self.random_state)
            self.mean_, self.projection_, self.rotation_, self.turns_ = paper.algorithm_3(
                X, self.n_bits, self.mechanism_, self._steps, printed=self.procrustes == "printed", rng=rng
            )
            return self
        door: Sums = NoNoise()
        if self.learned_from == "private":
            door = Door(
                self._learning(X.shape[1]),
                what=f"projection and rotation for {self.n_bits} bits",
                ledger=ledger,
                random_state=self.random_state,
            )
        self._rotate(self._clipped(X), door, rng)
        return self

    def transform(
        self,
        X: Any,
        *,
        signs: bool = False,
        ledger: Ledger | None = None,
        names: Sequence[str] | None = None,
    ) -> Array:
        """The codes that are released: flipped, or under "paper" the plain sign(YWR) of Algorithm 3's last line."""
        check_is_fitted(self)
        bits = codes.unpack(super().transform(X), self.n_bits)
        if self.calibration == "paper":  # charged, and so refused by a ledger: none is proven
            Door(self.guarantee_, what="Algorithm 3's codes", ledger=ledger, random_state=self.random_state)
        else:
            what = f"{len(bits)} flipped codes of {self.n_bits} bits"
            door = Door(self._codes(), what=what, ledger=ledger, random_state=self.random_state)
            bits = (
                door.release(CODE, bits)
                if names is None
                else door.release_each(CODE, bits, names, about=saving.fingerprint(self))
            )
        return 2 * bits.astype(np.int8) - 1 if signs else codes.pack(bits)

    def fit_transform(self, X: Any, y: Any = None, *, ledger: Ledger | None = None) -> Array:
        """Learn, and release the same images' codes."""
        return self.fit(X, y, ledger=ledger).transform(X, ledger=ledger)

    def query(self, X: Any) -> NDArray[np.uint8]:
        """The plain packed codes of queries, without noise: keep them to yourself."""
        return super().transform(X)

    def decision_function(self, X: Any) -> Array:
        """The rotated values (n, c) whose signs are the plain bits; not protected."""
        return super().decision_function(X)

    @property
    def mechanism_(self) -> BitFlip:
        """How codes are flipped on release (proven), or in each iteration (paper: beta = e^(-epsilon/E))."""
        if self.calibration == "paper":
            return BitFlip.paper(self.epsilon / self._steps, n_bits=self.n_bits)
        return BitFlip.proven(self.epsilon * (1 - self._share), n_bits=self.n_bits)

    @property
    def entropy_(self) -> Any:
        """What the noise is made of."""
        return source_of(self.random_state).name

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Learned arrays and JSON-able fields."""
        arrays, fields = super().state()
        return arrays, {**fields, "guarantee": self.guarantee_.to_json()}

    def restore(self, arrays: dict[str, Array], fields: dict[str, Any]) -> None:
        """Take the learned state from what `state` gave."""
        self._check()
        super().restore(arrays, fields)
        saved, due = Guarantee.from_json(fields["guarantee"]), self._guarantee(self.n_features_in_)
        stated = dataclasses.replace(saved, audited=None, entropy=due.entropy, simulation=due.simulation)
        require(stated == due, "its guarantee is not that of its parameters")
        self.guarantee_ = saved

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags

    @property
    def _steps(self) -> int:
        return (50 if self.calibration == "paper" else 5) if self.n_iterations is None else self.n_iterations

    @property
    def _share(self) -> float:
        return self.learning_share if self.learned_from == "private" else 0.0

    def _check(self) -> None:
        checks.whole("n_bits", self.n_bits)
        checks.positive("epsilon", self.epsilon)
        checks.one_of("calibration", self.calibration, ("paper", "proven"))
        checks.one_of("learned_from", self.learned_from, ("private", "public"))
        checks.one_of("procrustes", self.procrustes, ("correct", "printed"))
        checks.whole("n_iterations", self._steps)
        checks.positive("clip", self.clip)
        if self.procrustes == "printed" and self.calibration != "paper":
            raise InvalidParameter("procrustes='printed' undoes the rotation; it is there for calibration='paper'.")
        if not 0 < checks.number("learning_share", self.learning_share) < 1:
            raise InvalidParameter(f"learning_share must lie strictly between 0 and 1, got {self.learning_share!r}.")

    def _clipped(self, X: Array) -> Array:
        return clip_norm(X, self.clip)

    def _rotate(self, X: Array, door: Sums, rng: np.random.Generator) -> None:
        self.mean_ = moments.mean(X, door)
        centred = clip_norm(X - self.mean_, self.clip)
        axes = min(self.n_bits, X.shape[1])
        self.projection_ = principal_axes(moments.second(centred, door), axes)
        V = centred @ self.projection_
        R = random_rotation(axes, self.n_bits, rng)
        for _ in range(self._steps):
            U = np.where(V @ R >= 0, 1.0, -1.0)
            R = procrustes(moments.cross(U, V, door))
        self.rotation_ = R

    def _project(self, X: Array) -> Array:
        rows = X if self.calibration == "paper" else self._clipped(X)
        return (rows - self.mean_) @ self.projection_ @ self.rotation_

    def plan(self, n_features: int) -> Plan:
        """What will be released, before any image is seen."""
        self._check()
        return self._guarantee(checks.whole("n_features", n_features)).releases

    def _learning(self, d: int) -> Guarantee:
        """A tenth of the learning budget for the mean, half for W, the rest over the iterations of R."""
        axes = min(self.n_bits, d)
        shares = (
            Share("mean", 0.1, 2 * self.clip, d),
            Share("second moment", 0.5, math.sqrt(2) * self.clip**2, d * (d + 1) // 2),
            # |u| = sqrt(c), |v| <= clip
            Share("cross moment", 0.4, 2 * math.sqrt(self.n_bits) * self.clip, axes * self.n_bits, self._steps),
        )
        plan = moments.plan_for(shares, epsilon=self.epsilon * self._share, delta=self.delta)
        return Guarantee(
            releases=plan, delta=self.delta, model="central", assumptions=(PUBLIC_NUMBER,), entropy=self.entropy_
        )

    def _codes(self) -> Guarantee:
        return flip_guarantee(self.mechanism_, calibration="proven", entropy=self.entropy_, independent=True)

    def _guarantee(self, d: int) -> Guarantee:
        if self.calibration == "paper":
            return Guarantee(
                unproven=(_NO_NOISE,),
                mechanism=f"PITQ, {self._steps} iterations flipping with beta = {self.mechanism_.beta:.4g}",
                unit="record",
                model="central",
                claimed=self.epsilon,
                calibration="paper",
                assumptions=(_NO_NOISE,),
                sampler="exact",
                entropy=self.entropy_,
                also=(Cost(epsilon=math.inf, unit="bit"),),
            )
        if self.learned_from == "public":
            return self._codes()
        return Guarantee(
            releases=(*self._learning(d).releases, *self._codes().releases),
            delta=self.delta,
            model="central",
            assumptions=(PUBLIC_NUMBER, ONCE),
            entropy=self.entropy_,
        )


_NO_NOISE = Assumption("no noise", "the final codes and the projection are released without noise: nothing is proven")

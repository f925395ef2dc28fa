"""PITQ (Algorithm 3 of Wang, Lu and Zhang 2020), to the letter, and a version whose promise can be
proved.

To the letter, each iteration flips the codes with beta = e^(-epsilon/E), which for E = 50 is 0.92
to 0.995: the codes are negated, the rotation follows the negation, and the result is plain ITQ. The
projection W and the final codes sign(YWR) are released without any noise. So the paper's epsilon is
claimed and none is proven.

Proven: what leaves is W, R and the codes. W comes from a noisy mean and second moment of clipped
rows, R from a noisy U'(YW) in each iteration, all Gaussian and composed exactly, and the codes are
flipped before release. With images that are public, W and R cost nothing and the whole budget goes
to the codes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted, validate_data

from blindsight.core import checks, codes
from blindsight.core.errors import InvalidParameter
from blindsight.hashing import moments, paper
from blindsight.hashing.base import require
from blindsight.hashing.guarantee import (
    ONCE,
    PUBLIC_NUMBER,
    ReleasesCodes,
    Source,
    fact,
    flip_guarantee,
)
from blindsight.hashing.moments import NoNoise, Share, Sums
from blindsight.hashing.unsupervised import principal_axes, procrustes, random_rotation
from blindsight.privacy import Assumption, Cost, Door, Guarantee
from blindsight.privacy.clipping import clip_norm, finite_rows
from blindsight.privacy.entropy import RandomState, training_rng
from blindsight.privacy.mechanisms import BitFlip

if TYPE_CHECKING:
    from blindsight.privacy import Ledger

__all__ = ["PITQ"]

Array = NDArray[Any]


class PITQ(ReleasesCodes):
    """Private iterative quantisation: Algorithm 3, and a version with a proof.

    Parameters:
        n_bits: the number c of bits of a code.
        epsilon: the whole budget per record.
        delta: spent on learning W and R.
        calibration: "proven", or "paper" for Algorithm 3.
        procrustes: "correct" (R = M N' from U'(YW) = N Omega M') or "printed" (R = N N', which is
            the identity; with "paper" only).
        learned_from: "private" if `fit` sees the protected images, "public" if it sees others.
        learning_share: the share of epsilon for learning W and R, if learning is private.
        clip: rows are scaled into the ball of this radius.
        n_iterations: E; by default 50 with "paper" and 5 with "proven", where each iteration
            costs.
        random_state: None for the operating system's entropy; a seed makes a simulation.

    Guarantee:
        Proven: (epsilon, delta) per record, replace one, for W, R and the codes together. `fit`
            charges
        the ledger for learning, `transform` for the codes. Released sums have discrete Gaussian
        noise, so the low bits of floating-point numbers reveal nothing. Paper: epsilon is claimed,
        none is proven.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> hasher = PITQ(8, epsilon=8.0, random_state=0).fit(rng.normal(size=(200, 16)))
        >>> hasher.transform(rng.normal(size=(3, 16))).shape, hasher.guarantee_.delta
        ((3, 1), 1e-05)
    """

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
        X = finite_rows(X) if self._private else X
        X = validate_data(self, X, dtype=(np.float64, np.float32), ensure_min_samples=2)
        self.public_ = {"n_features": X.shape[1]}
        self.guarantee_ = self.promise(**self.public_)
        rng, _ = training_rng(self.random_state if self.entropy_ == "seed" else None)
        if self.calibration == "paper":
            Door(
                self.guarantee_,
                what="Algorithm 3's rotation",
                ledger=ledger,
                random_state=self.random_state,
            )
            *learned, turns = paper.algorithm_3(
                X,
                self.n_bits,
                self.mechanism_,
                self._steps,
                printed=self.procrustes == "printed",
                rng=rng,
            )
            self.turns_ = turns
        else:
            learned = self._rotate(clip_norm(X, self.clip), self._door(X.shape[1], ledger), rng)
        found = dict(zip(("mean", "projection", "rotation"), learned, strict=True))
        self.released_ = found if self._private else {}
        self.public_ |= {} if self._private else found
        return self._settle_in()

    def transform(
        self,
        X: Any,
        *,
        signs: bool = False,
        ledger: Ledger | None = None,
        names: Sequence[str] | None = None,
    ) -> Array:
        """The codes that are released: flipped, or under "paper" the plain sign(YWR) of Algorithm
        3's last line.
        """
        bits = (self.decision_function(finite_rows(X)) >= 0).astype(np.uint8)
        if self.calibration == "paper":  # charged, and so refused by a ledger: none is proven
            Door(
                self.guarantee_,
                what="Algorithm 3's codes",
                ledger=ledger,
                random_state=self.random_state,
            )
        else:
            what = f"{len(bits)} flipped codes of {self.n_bits} bits"
            bits = self._send(bits, what=what, ledger=ledger, names=names, promised=self._codes())
        return 2 * bits.astype(np.int8) - 1 if signs else codes.pack(bits)

    def fit_transform(self, X: Any, y: Any = None, *, ledger: Ledger | None = None) -> Array:
        """Learn, and release the same images' codes."""
        return self.fit(X, y, ledger=ledger).transform(X, ledger=ledger)

    def query(self, X: Any) -> NDArray[np.uint8]:
        """The plain packed codes of queries, without noise: keep them to yourself."""
        return codes.pack(self.decision_function(X) >= 0)

    def decision_function(self, X: Any) -> Array:
        """The rotated values (n, c) whose signs are the plain bits; not protected."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        rows = rows if self.calibration == "paper" else clip_norm(rows, self.clip)
        return np.asarray((rows - self.mean_) @ self.projection_ @ self.rotation_)

    @property
    def mechanism_(self) -> BitFlip:
        """How codes are flipped on release (proven), or in each iteration (paper: beta =
        e^(-epsilon/E)).
        """
        if self.calibration == "paper":
            return BitFlip.paper(self.epsilon / self._steps, n_bits=self.n_bits)
        return BitFlip.proven(self.epsilon * (1 - self._share), n_bits=self.n_bits)

    def promise(self, **public: Any) -> Guarantee:
        """What W, R and the codes of images with `n_features` promise together, before any image is
        seen.
        """
        self._check()
        if self.calibration == "paper":
            return Guarantee(
                unproven=(_NO_NOISE,),
                mechanism=f"PITQ, {self._steps} iterations flipping with beta = "
                f"{self.mechanism_.beta:.4g}",
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
            releases=(
                *self._learning(fact(public, "n_features")).releases,
                *self._codes().releases,
            ),
            delta=self.delta,
            model="central",
            assumptions=(PUBLIC_NUMBER, ONCE),
            entropy=self.entropy_,
        )

    @property
    def _n_features_out(self) -> int:
        return codes.n_bytes(self.n_bits)

    @property
    def _private(self) -> bool:
        """Whether what was learned left through a door, or without one under "paper"."""
        return self.calibration == "paper" or self.learned_from == "private"

    @property
    def _steps(self) -> int:
        return (
            (50 if self.calibration == "paper" else 5)
            if self.n_iterations is None
            else self.n_iterations
        )

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
            raise InvalidParameter(
                "procrustes='printed' undoes the rotation; it is there for calibration='paper'."
            )
        if not 0 < checks.number("learning_share", self.learning_share) < 1:
            raise InvalidParameter(
                f"learning_share must lie strictly between 0 and 1, got {self.learning_share!r}."
            )

    def _door(self, d: int, ledger: Ledger | None) -> Sums:
        if self.learned_from == "public":
            return NoNoise()
        what = f"projection and rotation for {self.n_bits} bits"
        return Door(self._learning(d), what=what, ledger=ledger, random_state=self.random_state)

    def _rotate(self, X: Array, door: Sums, rng: np.random.Generator) -> list[Array]:
        mean = moments.mean(X, door)
        centred = clip_norm(X - mean, self.clip)
        axes = min(self.n_bits, X.shape[1])
        projection = principal_axes(moments.second(centred, door), axes)
        V = centred @ projection
        R = random_rotation(axes, self.n_bits, rng)
        for _ in range(self._steps):
            U = np.where(V @ R >= 0, 1.0, -1.0)
            R = procrustes(moments.cross(U, V, door))
        return [mean, projection, R]

    def _settle(self) -> None:
        part = self.released_ if self._private else self.public_
        self.mean_, self.projection_, self.rotation_ = (
            np.asarray(part[name], dtype=np.float64) for name in ("mean", "projection", "rotation")
        )
        d = self.n_features_in_ = checks.whole("n_features", self.public_["n_features"])
        wanted = ((d,), (d, *self.rotation_.shape[:1]), (*self.projection_.shape[1:], self.n_bits))
        found = (self.mean_.shape, self.projection_.shape, self.rotation_.shape)
        require(found == wanted, "the learned arrays do not fit the number of bits")

    def _learning(self, d: int) -> Guarantee:
        """A tenth of the learning budget for the mean, half for W, the rest over the iterations of
        R.
        """
        axes = min(self.n_bits, d)
        shares = (
            Share("mean", 0.1, 2 * self.clip, d),
            Share("second moment", 0.5, math.sqrt(2) * self.clip**2, d * (d + 1) // 2),
            # |u| = sqrt(c), |v| <= clip
            Share(
                "cross moment",
                0.4,
                2 * math.sqrt(self.n_bits) * self.clip,
                axes * self.n_bits,
                self._steps,
            ),
        )
        plan = moments.plan_for(shares, epsilon=self.epsilon * self._share, delta=self.delta)
        return Guarantee(
            releases=plan,
            delta=self.delta,
            model="central",
            assumptions=(PUBLIC_NUMBER,),
            entropy=self.entropy_,
        )

    def _codes(self) -> Guarantee:
        return flip_guarantee(
            self.mechanism_, calibration="proven", entropy=self.entropy_, independent=True
        )


_NO_NOISE = Assumption(
    "no noise", "the final codes and the projection are released without noise: nothing is proven"
)

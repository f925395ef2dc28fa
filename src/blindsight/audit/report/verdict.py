"""A row of the table: what a method claims, what is proved, and what an attack measured."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from blindsight.privacy import Audited, Guarantee, Recovery

__all__ = ["COLUMNS", "NOT_REFUTED", "REFUTED", "Room", "Verdict"]

Room = Literal["hashing", "federated", "metric", "sketching", "tagging", "privacy"]
REFUTED, NOT_REFUTED = "REFUTED", "not refuted"
COLUMNS = ("method", "setting", "unit", "claimed", "proven", "audited", "attack", "verdict")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One method in one setting, with its three numbers.

    `promise` says what the paper promises where it names no epsilon; `recovered` is what an attack
    recovered there, and `broken` whether that contradicts the promise.
    """

    room: Room
    method: str
    setting: str
    unit: str
    calibration: Literal["paper", "proven"]
    claimed: float | None
    proven: float
    audited: Audited | None = None
    promise: str | None = None
    recovered: Recovery | None = None
    broken: bool = False
    advice: str = ""

    @classmethod
    def of(
        cls,
        guarantee: Guarantee,
        audited: Audited | None,
        *,
        room: Room,
        method: str,
        setting: str,
        advice: str = "",
    ) -> Verdict:
        """Return the verdict on a guarantee from the attack on it, if there was one."""
        return cls(
            room=room,
            method=method,
            setting=setting,
            unit=guarantee.unit,
            calibration=guarantee.calibration,
            claimed=guarantee.claimed if guarantee.calibration == "paper" else None,
            proven=guarantee.epsilon,
            audited=audited,
            advice=advice,
        )

    @property
    def refuted(self) -> bool:
        """Whether the attack contradicts the claim, or the proof where there is no claim."""
        if self.audited is None:
            return self.broken
        promised = self.proven if self.claimed is None else self.claimed
        return self.audited.epsilon > promised

    @property
    def published(self) -> bool:
        """Whether this judges a paper's own promise."""
        return self.calibration == "paper" and (
            self.claimed is not None or self.promise is not None
        )

    @property
    def word(self) -> str:
        """ "REFUTED" or "not refuted"; never "private"."""
        return REFUTED if self.refuted else NOT_REFUTED

    @property
    def attack(self) -> str:
        if self.audited is not None:
            return self.audited.attack
        return "not attacked" if self.recovered is None else self.recovered.attack

    def cells(self) -> tuple[str, ...]:
        """Return the table's columns as text.

        They are method, setting, unit, claimed, proven, audited, attack and verdict.
        """
        audited = (
            f"ε ≥ {self.audited.epsilon:.2f}"
            if self.audited is not None
            else _recovered(self.recovered)
        )
        claimed = self.promise or ("none" if self.claimed is None else f"ε = {self.claimed:g}")
        proven = "none" if math.isinf(self.proven) else f"ε = {self.proven:.4g}"
        return (
            self.method,
            self.setting,
            self.unit,
            claimed,
            proven,
            audited,
            self.attack,
            self.word,
        )

    def to_dict(self) -> dict[str, Any]:
        fields = dataclasses.asdict(self)
        fields["proven"] = "inf" if math.isinf(self.proven) else self.proven
        if self.audited is not None and math.isinf(self.audited.epsilon):
            fields["audited"]["epsilon"] = "inf"
        return {**fields, "verdict": self.word}


def _recovered(recovery: Recovery | None) -> str:
    """Return shares as percentages; the columns of the report say of what."""
    if recovery is None:
        return ""
    return (
        f"{recovery.value:.0%} recovered"
        if "share" in recovery.measure
        else f"{recovery.value:.3g} {recovery.measure}"
    )

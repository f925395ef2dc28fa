"""What "auto" means: the paper's settings under calibration="paper", ours under "proven"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter

__all__ = ["Settings", "resolve"]

_PAPER: dict[str, Any] = {
    "mechanism": "laplace",
    "margin": "mean",
    "clip": 0.5,
    "batch_size": 50,
    "epochs": 10,
    "step_size": 1.0,
    "step_rule": "compound",
}
# Chosen once, on digits, and left alone: choosing anew on private data would itself cost privacy.
# "noise" is as large a step as the noise allows, see `learning`.
_OURS: dict[str, Any] = {
    "mechanism": "gaussian",
    "margin": "mean",
    "clip": 0.1,
    "batch_size": None,
    "epochs": 20,
    "step_size": "noise",
    "step_rule": "constant",
}
# Algorithm 1 mended keeps the paper's numbers; only the proof is new.
_MENDED = {**_PAPER, "margin": 1.0, "step_rule": "root"}
_MECHANISMS = ("gaussian", "laplace", "scdf", "duchi")


@dataclass(frozen=True)
class Settings:
    """An estimator's parameters with every "auto" filled in and checked."""

    mechanism: str
    normalize: str
    margin: Any
    clip: float
    batch_size: int | None
    epochs: int
    step_size: Any
    step_rule: str


def resolve(given: dict[str, Any]) -> Settings:
    """Fill in and check; `given` is the estimator's `get_params()`."""
    calibration = checks.one_of("calibration", given["calibration"], ("paper", "proven"))
    mechanism = given["mechanism"]
    if mechanism == "auto":
        mechanism = "laplace" if calibration == "paper" else "gaussian"
    checks.one_of("mechanism", mechanism, _MECHANISMS)
    defaults = _PAPER if calibration == "paper" else _OURS if mechanism == "gaussian" else _MENDED
    value: dict[str, Any] = {key: defaults[key] if given[key] == "auto" else given[key] for key in defaults}
    value["mechanism"] = mechanism
    normalize = given["normalize"]
    if normalize == "auto":
        normalize = "l2" if mechanism == "gaussian" else "l1"
    if value["margin"] != "mean":
        value["margin"] = checks.positive("margin", value["margin"])
    if value["batch_size"] is not None:
        checks.whole("batch_size", value["batch_size"])
    elif calibration == "paper" or mechanism != "gaussian":
        raise InvalidParameter("batch_size must be a whole number here: only Gaussian noise takes all pairs at once.")
    if value["step_size"] != "noise":
        value["step_size"] = checks.positive("step_size", value["step_size"])
    checks.one_of("step_rule", value["step_rule"], ("compound", "root", "constant"))
    if calibration == "proven" and mechanism == "gaussian" and value["step_rule"] != "constant":
        raise InvalidParameter("step_rule must be 'constant' with proven Gaussian noise; the iterates are averaged.")
    if calibration == "proven" and given["sensitivity_reduction"]:
        raise InvalidParameter(
            "sensitivity_reduction scales the noise by the data: it has no proof. Use calibration='paper' to compare."
        )
    return Settings(
        **{**value, "clip": checks.positive("clip", value["clip"]), "epochs": checks.whole("epochs", value["epochs"])},
        normalize=checks.one_of("normalize", normalize, ("l1", "l2", "none")),
    )

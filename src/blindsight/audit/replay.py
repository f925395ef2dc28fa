"""(i) Grey-box replay: run on a neighbour with the noise frozen and compare what changed with what was promised.

Three runs of `run(data, rng, ledger)` with every mechanism tapped:

1. on the data, recording each release (mechanism, what went in, what came out) and each charge, in order;
2. on the neighbour with the same dice: what went in may differ by no more than the declared sensitivity, and the
   mechanisms themselves may not differ at all (a noise scale taken from the data would);
3. on the neighbour again, but handing out what run 1 released: if the output still differs, something about the data
   left by another way than through a mechanism.

It finds bugs that would take a black box a million trials, and says where they are.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import BlindsightError
from blindsight.privacy import Cost, accounting
from blindsight.privacy import mechanisms as all_mechanisms

__all__ = ["Findings", "Release", "refuses_nan", "replay"]

Run = Callable[[Any, np.random.Generator, Any], Any]
_TOLERANCE = 1 + 1e-9


@dataclass(frozen=True)
class Release:
    """One call of a mechanism: what went in, what came out."""

    mechanism: Any
    given: NDArray[Any]
    released: NDArray[Any]

    @property
    def noise(self) -> NDArray[np.float64]:
        """What was added, for the mechanisms that add."""
        return np.asarray(self.released, np.float64) - np.asarray(self.given, np.float64)


@dataclass
class _Log:
    """What happened in one run, in order; also stands in for the ledger."""

    releases: list[Release] = field(default_factory=list)
    charges: list[Cost] = field(default_factory=list)
    charged_first: bool = True

    def charge(self, cost: Cost, *, what: str = "") -> None:
        """Take note of a charge."""
        self.charges.append(cost)

    def record(self, release: Release) -> None:
        self.charged_first &= bool(self.charges)
        self.releases.append(release)


@dataclass(frozen=True)
class Findings:
    """What the replay found; empty means not refuted, never proved."""

    problems: tuple[str, ...]
    charged: Cost | None
    releases: int

    @property
    def refuted(self) -> bool:
        """Whether anything contradicts the promise."""
        return bool(self.problems)

    def __str__(self) -> str:
        return "not refuted" if not self.problems else "REFUTED: " + "; ".join(self.problems)


def replay(run: Run, data: Any, neighbour: Any, *, seed: int = 0, amplified: bool = False) -> Findings:
    """Replay `run(data, rng, ledger)` on a neighbour with frozen noise and list what contradicts the promise.

    `amplified=True` says that the run's accountant counts on subsampling, so that the charge may be less than the
    releases' own costs together.
    """
    here, output = _recorded(run, data, seed)
    there, _ = _recorded(run, neighbour, seed)
    again, _ = _recorded(run, data, seed + 1)
    problems = [
        *_ledger_problems(here, amplified=amplified),
        *_input_problems(here, there),
        *_dice_problems(here, again),
    ]
    if not problems and _differs(output, _forced(run, neighbour, seed, here.releases)):
        problems.append("the output depends on the data beyond what the mechanisms released")
    charged = accounting.compose(here.charges) if here.charges else None
    return Findings(problems=tuple(problems), charged=charged, releases=len(here.releases))


def refuses_nan(run: Run, data: Any, *, seed: int = 0) -> bool:
    """Whether one NaN in the data is answered with an error of ours, before anything is released."""
    spoiled = np.array(data, dtype=np.float64)
    spoiled.reshape(-1)[0] = np.nan
    log = _Log()
    try:
        with _tapped(log.record):
            run(spoiled, np.random.default_rng(seed), log)
    except BlindsightError:
        return not log.releases
    return False


def _recorded(run: Run, data: Any, seed: int) -> tuple[_Log, Any]:
    log = _Log()
    with _tapped(log.record):
        output = run(data, np.random.default_rng(seed), log)
    return log, output


def _forced(run: Run, data: Any, seed: int, releases: list[Release]) -> Any:
    """The output when every mechanism hands out what it handed out before."""
    waiting = iter(releases)
    with _tapped(lambda release: None, instead=lambda: next(waiting).released.copy()):
        return run(data, np.random.default_rng(seed), _Log())


@contextmanager
def _tapped(record: Callable[[Release], None], *, instead: Callable[[], Any] | None = None) -> Iterator[None]:
    """All of our mechanisms report each release while this lasts."""
    kept = []
    for kind in (getattr(all_mechanisms, name) for name in all_mechanisms.__all__):
        for method in ("release", "release_packed"):
            if method in vars(kind):
                kept.append((kind, method, vars(kind)[method]))
                setattr(kind, method, _wrapped(vars(kind)[method], record, instead))
    try:
        yield
    finally:
        for kind, method, original in kept:
            setattr(kind, method, original)


def _wrapped(original: Callable[..., Any], record: Callable[[Release], None], instead: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def release(self: Any, x: Any, *, rng: Any) -> Any:
        released = original(self, x, rng=rng) if instead is None else instead()
        record(Release(self, np.array(x), np.array(released)))
        return released

    return release


def _ledger_problems(log: _Log, *, amplified: bool) -> Iterator[str]:
    if not log.releases:
        return
    if not log.charges:
        yield "nothing was charged for what was released"
        return
    if not log.charged_first:
        yield "something was released before it was charged"
    charged = accounting.compose(log.charges)
    if any(release.mechanism.cost.unit != charged.unit for release in log.releases):
        return  # the run converts units itself; the bound below would compare unlike things
    if not amplified and _cheapest(log.releases) > charged.epsilon * _TOLERANCE:
        yield f"the releases cost ε = {_cheapest(log.releases):.3g}, the ledger was told {charged.epsilon:.3g}"


def _cheapest(releases: list[Release]) -> float:
    """The least epsilon that the releases can cost together: basic composition, Gaussians as one larger Gaussian."""
    pure = sum(r.mechanism.cost.epsilon for r in releases if r.mechanism.cost.delta == 0)
    smooth = [r.mechanism for r in releases if isinstance(r.mechanism, all_mechanisms.Gaussian)]
    if smooth:
        ratio = math.sqrt(sum((m.sensitivity / m.sigma) ** 2 for m in smooth))
        joint = all_mechanisms.Gaussian(
            sigma=1.0, sensitivity=ratio, delta=max(m.delta for m in smooth) * len(smooth), unit=smooth[0].unit
        )
        pure += joint.cost.epsilon
    return pure


def _input_problems(here: _Log, there: _Log) -> Iterator[str]:
    if len(here.releases) != len(there.releases):
        yield "how much is released depends on the data"
        return
    for index, (one, other) in enumerate(zip(here.releases, there.releases, strict=True)):
        name = f"release {index + 1} ({type(one.mechanism).__name__})"
        if one.mechanism != other.mechanism:
            yield f"{name}: the noise itself depends on the data"
        elif one.given.shape != other.given.shape:
            yield f"{name}: the size of what is released depends on the data"
        else:
            moved, allowed = _moved(one, other)
            if moved > allowed * _TOLERANCE:
                yield f"{name}: the input moved by {moved:.3g} where {allowed:.3g} was declared"


def _moved(one: Release, other: Release) -> tuple[float, float]:
    """How far the input moved between neighbours, and how far the mechanism allows, in the mechanism's own norm."""
    m = one.mechanism
    change = np.asarray(one.given, np.float64) - np.asarray(other.given, np.float64)
    if isinstance(m, all_mechanisms.Laplace):
        return float(np.abs(change).sum()), m.sensitivity
    if isinstance(m, (all_mechanisms.Gaussian, all_mechanisms.DiscreteGaussian)):
        return float(np.sqrt(np.square(change).sum())), m.sensitivity
    if isinstance(m, all_mechanisms.DiscreteLaplace):
        return float(np.abs(np.rint(one.given / m.grid) - np.rint(other.given / m.grid)).sum()), m.sensitivity
    if isinstance(m, all_mechanisms.NoisyTopK):
        return float(np.abs(change).max(initial=0)), m.sensitivity
    if isinstance(m, all_mechanisms.Staircase):
        if np.abs(change).max(initial=0) > m.sensitivity * _TOLERANCE:
            return float(np.abs(change).max()), m.sensitivity
        return float(np.count_nonzero(change)), m.dimensions
    # Local mechanisms release one record a row: a neighbour differs in one row only.
    if change.ndim < 2:
        return 0.0, 1.0
    return float((change.reshape(len(change), -1) != 0).any(axis=1).sum()), 1.0


def _dice_problems(here: _Log, again: _Log) -> Iterator[str]:
    """The same noise twice: within a run, or between runs whose dice differ."""
    sized = [r for r in here.releases if r.given.shape == r.released.shape and r.given.size >= 4]
    for first, second in itertools.pairwise(sized):
        if first.noise.shape == second.noise.shape and np.allclose(first.noise, second.noise) and first.noise.any():
            yield "two releases carry the same noise"
            return
    for first, second in zip(here.releases, again.releases, strict=False):
        if first.given.shape != first.released.shape or first.given.size < 4:
            continue
        if first.noise.shape == second.noise.shape and np.allclose(first.noise, second.noise):
            yield "the noise does not depend on the dice"
            return


def _differs(one: Any, other: Any) -> bool:
    left, right = np.asarray(one), np.asarray(other)
    return left.shape != right.shape or not np.array_equal(left, right, equal_nan=left.dtype.kind == "f")

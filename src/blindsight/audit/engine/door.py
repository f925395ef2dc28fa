"""Audit the real code by replay: run it on neighbouring data with frozen entropy and the same
released values.

    report = audit_door(run, data, neighbours=neighbours_of(data), unrelated=[noise])
    print(report)  # "not refuted", or what contradicts the promise, and where

A door is the object through which every release of an estimator passes: a value goes in, and the
mechanism's noisy value comes out. `run(data, folder)` is the code under audit; its outputs are
everything that it returns, saves in `folder`, prints, logs and raises.

A replay runs the code on a neighbour of the data, and every door returns the value that it
released on the data. It tests two things. The value before the noise may differ from that on the
data by no more than the mechanism's sensitivity (given equal earlier releases). And every output
(`outputs`) must be the same, byte by byte, because outputs may depend on the data through the
released values only; this is also tested on unrelated data. A run with a ledger must charge every
account at least what its doors promise. An audit can refute a promise; it cannot prove one.

`neighbours_of` and `unrelated_datasets` work for any data set: an array, or a tuple of arrays with
one row per record. Real numbers are set to both ends of their range, negated, set to zero, scaled
far out, put on one axis, and replaced by NaN, infinity and 1e308; whole numbers and labels are set
to their smallest and largest value; a record becomes a copy of another, or is absent.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from blindsight.audit.engine import independent_checks
from blindsight.audit.engine.independent_checks import Gauss, Pure, epsilon_of
from blindsight.audit.engine.listeners import (
    DoorEntry,
    Opening,
    RecordingListener,
    ReplayListener,
    charging,
    unheard,
)
from blindsight.audit.engine.outputs import Outputs, Run, collect
from blindsight.core.arrays import Array
from blindsight.core.errors import InvalidParameter
from blindsight.privacy.mechanisms import Mechanism

__all__ = [
    "DoorAudit",
    "DoorFinding",
    "Neighbour",
    "Reached",
    "audit_door",
    "neighbours_of",
    "unrelated_datasets",
]

_HAIR = 1 + 1e-9
# Tolerances: between two accountants, and between the measured and the stated scale of the noise.
_ACCOUNT = 0.02


@dataclass(frozen=True)
class Neighbour:
    """Data that differ from the audited ones in one unit.

    `record` is the row that was replaced, where that is known. `absent` are rows of the audited
    data that are treated as absent; `data` is then the audited data itself. `removed` says that
    `data` lacks a unit. Under "add or remove one" a replaced record is two steps away, so it may
    change a release by twice the sensitivity.
    """

    name: str
    data: object
    record: int | None = None
    absent: tuple[int, ...] = ()
    removed: bool = False

    @property
    def lacks(self) -> bool:
        """Whether the unit is absent or removed."""
        return self.removed or bool(self.absent)


@dataclass(frozen=True)
class DoorFinding:
    """One contradiction: its kind, where it was found, and a description."""

    kind: str
    where: str
    says: str

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.where}: {self.says}" if self.where else f"{self.kind}: {self.says}"
        )


@dataclass(frozen=True)
class Reached:
    """How far the neighbours changed a release, compared with its sensitivity.

    Where the share is small, a wrong sensitivity may go unnoticed.
    """

    what: str
    moved: float
    allowed: float

    @property
    def share(self) -> float:
        """The largest change divided by the allowed change."""
        return self.moved / self.allowed if self.allowed > 0 else 0.0


@dataclass(frozen=True)
class DoorAudit:
    """The findings of an audit; without findings the promise is not refuted, but not proved."""

    findings: tuple[DoorFinding, ...]
    reached: tuple[Reached, ...]
    passages: int
    replays: int
    notes: tuple[str, ...] = ()

    @property
    def refuted(self) -> bool:
        """Whether anything contradicts the promise."""
        return bool(self.findings)

    def __str__(self) -> str:
        if not self.findings:
            return f"not refuted ({self.passages} releases, {self.replays} replays)"
        return "REFUTED:\n" + "\n".join(f"  {finding}" for finding in self.findings)


@dataclass
class _Audit:
    """The state of one audit while it runs."""

    run: Run
    seed: int
    recording: RecordingListener
    outputs: Outputs
    findings: dict[tuple[str, str], DoorFinding] = field(default_factory=dict)
    reached: dict[str, tuple[float, float]] = field(default_factory=dict)
    # Values before the noise, per replaced record: neighbours that replace the same record are
    # neighbours of each other.
    stood: dict[int, list[tuple[Neighbour, list[Any]]]] = field(default_factory=dict)
    unsteady: set[str] = field(default_factory=set)
    replays: int = 0

    def find(self, kind: str, where: str, says: str) -> None:
        """Add a finding; only the first of each kind and place is kept."""
        self.findings.setdefault((kind, where), DoorFinding(kind, where, says))

    def replay(self, data: object, absent: Sequence[int] = ()) -> tuple[ReplayListener, Outputs]:
        listener = ReplayListener(self.recording.log, self.seed, absent=absent)
        self.replays += 1
        return listener, collect(self.run, data, listener, seed=self.seed)


def audit_door(
    run: Run,
    data: object,
    *,
    neighbours: Iterable[Neighbour] = (),
    unrelated: Iterable[Any] = (),
    seed: int = 0,
    exact: bool = True,
    floats: Sequence[str] = (),
    simulated: bool = False,
    rolls: int = 60_000,
) -> DoorAudit:
    """Audit every output of `run(data, folder)`.

    Parameters:
        run: the code under audit, called with the data and an empty folder.
        data: the data of the recorded run.
        neighbours: data that differ in one unit of the guarantee, at extremes.
        unrelated: entirely different data with the same public properties.
        seed: of the frozen entropy.
        exact: whether every release must be drawn by an exact sampler.
        floats: the names of releases that are exempt from `exact`.
        simulated: whether the run is seeded on purpose.
        rolls: how many numbers are drawn from each mechanism to test its noise.

    Returns:
        The findings, and how far the neighbours changed each release.
    """
    recording = RecordingListener(seed)
    audit = _Audit(run, seed, recording, collect(run, data, recording, seed=seed))
    notes = [] if recording.log else ["nothing passed a door"]
    if audit.outputs.raised:
        notes.append(f"the run itself raised {audit.outputs.raised}")
    _same_again(audit, data)
    _same_unheard(audit, data)
    _ledger(audit, data)
    for neighbour in neighbours:
        _neighbour(audit, neighbour)
    _among_neighbours(audit)
    for number, dataset in enumerate(unrelated):
        listener, outputs = audit.replay(dataset)
        _compare(audit, f"unrelated data {number}", listener, outputs)
    _account(audit)
    _samplers(audit, exact, set(floats))
    _noise(audit, simulated, rolls)
    _other_noise(audit, data)
    reached = tuple(Reached(release, *measured) for release, measured in audit.reached.items())
    return DoorAudit(
        tuple(audit.findings.values()), reached, len(recording.log), audit.replays, tuple(notes)
    )


def _same_again(audit: _Audit, data: object) -> None:
    """A run on the same data must give the same outputs: no clock and no other entropy in them."""
    listener, outputs = audit.replay(data)
    divergence = listener.finished()
    if divergence is not None:
        audit.find(
            "sequence",
            "",
            f"{divergence} (on the same data: something other than the door is random)",
        )
        return
    audit.unsteady = set(audit.outputs.differing(outputs))
    for name in sorted(audit.unsteady):
        audit.find(
            "output",
            name,
            "differs between two runs on the same data: a clock, or entropy of its own",
        )


def _same_unheard(audit: _Audit, data: object) -> None:
    """Without a listener and with the same streams, the outputs must be those of the recording."""
    audit.replays += 1
    with unheard(audit.seed):
        outputs = collect(audit.run, data, None, seed=audit.seed)
    for name in audit.outputs.differing(outputs):
        if name not in audit.unsteady:
            audit.find("listener", name, "differs when nobody listens at the door")


def _ledger(audit: _Audit, data: object) -> None:
    """With a ledger the outputs must be the same, and every account must be charged in full."""
    guarantees = [opening.guarantee for opening in audit.recording.openings]
    promised = [guarantee for guarantee in guarantees if guarantee is not None]
    if not promised or any(math.isinf(promise.epsilon) or promise.unproven for promise in promised):
        return  # a ledger refuses what has no finite price
    audit.replays += 1
    listener = ReplayListener(audit.recording.log, audit.seed)
    with charging([cost for promise in promised for cost in promise.costs]) as account:
        outputs = collect(audit.run, data, listener, seed=audit.seed)
        problems = list(account.problems())
    if outputs.raised and not audit.outputs.raised:
        audit.find("ledger", "", f"the run raises when it is charged: {outputs.raised[:200]}")
        return
    for problem in problems:
        audit.find("ledger", "", problem)
    for name in audit.outputs.differing(outputs):
        if name not in audit.unsteady:
            audit.find("ledger", name, "differs when a ledger is charged")


def _neighbour(audit: _Audit, neighbour: Neighbour) -> None:
    listener, outputs = audit.replay(neighbour.data, neighbour.absent)
    for entry, value in zip(audit.recording.log, listener.values, strict=False):
        _sensitivity(
            audit,
            entry,
            entry.value,
            value,
            1 if neighbour.lacks else 2,
            f"neighbour {neighbour.name!r}",
        )
    if neighbour.record is not None:
        audit.stood.setdefault(neighbour.record, []).append((neighbour, listener.values))
    _compare(audit, f"neighbour {neighbour.name!r}", listener, outputs)


def _among_neighbours(audit: _Audit) -> None:
    """Compare neighbours that replace the same record: they are neighbours of each other."""
    for stood in audit.stood.values():
        for (first, first_values), (second, second_values) in itertools.combinations(stood, 2):
            if first.lacks and second.lacks:
                continue
            steps = 1 if first.lacks or second.lacks else 2
            for entry, value, changed in zip(
                audit.recording.log, first_values, second_values, strict=False
            ):
                _sensitivity(
                    audit, entry, value, changed, steps, f"{first.name!r} against {second.name!r}"
                )


def _sensitivity(
    audit: _Audit,
    entry: DoorEntry,
    original: ArrayLike,
    value: ArrayLike,
    removals: int,
    inputs: str,
) -> None:
    """Compare two values before the noise with the sensitivity.

    `removals` is the number of additions and removals of a unit between the two inputs.
    """
    domain = entry.planned.mechanism.domain
    steps = removals if entry.planned.mechanism.neighbours == "add or remove one" else 1
    distance, reach = domain.distance(original, value) / steps, domain.reach
    release = entry.planned.what
    audit.reached[release] = max(audit.reached.get(release, (0.0, reach)), (distance, reach))
    if distance > reach * _HAIR:
        audit.find(
            "sensitivity",
            f"{release!r} of {entry.title!r}",
            f"moved by {distance:.4g} where {reach:.4g} is allowed ({inputs})",
        )
    elif distance > 0:
        _likelihood(audit, entry, original, value, steps)


def _likelihood(
    audit: _Audit, entry: DoorEntry, original: ArrayLike, value: ArrayLike, steps: int
) -> None:
    """Under pure epsilon no outcome may be more than e^epsilon times as likely on a neighbour."""
    mechanism = entry.planned.mechanism
    cost = mechanism.cost
    if cost.delta > 0 or math.isinf(cost.epsilon):
        return
    rng = np.random.default_rng(audit.seed)
    outcomes = [
        entry.released,
        *(mechanism.release(side, rng=rng) for side in (original, value) for _ in range(3)),
    ]
    for outcome in outcomes:
        with np.errstate(invalid="ignore"):
            change = np.nan_to_num(
                mechanism.log_prob(outcome, original) - mechanism.log_prob(outcome, value)
            )
        ratio = abs(float(np.sum(change))) / steps
        if ratio > cost.epsilon * _HAIR + 1e-9:
            audit.find(
                "price",
                f"{entry.planned.what!r} of {entry.title!r}",
                f"an outcome is e^{ratio:.4g} times as likely on a neighbour, its cost says "
                f"{cost.epsilon:.4g}",
            )
            return


def _compare(audit: _Audit, inputs: str, listener: ReplayListener, outputs: Outputs) -> None:
    divergence = listener.finished()
    if outputs.raised != audit.outputs.raised:
        expected = audit.outputs.raised[:160] or "none"
        says = f"{outputs.raised[:160] or 'no refusal'} on {inputs}, {expected} on the data"
        audit.find("refusal", "", f"whether it refuses depends on the data ({says})")
        return
    if divergence is not None:
        audit.find("sequence", "", f"{divergence} ({inputs})")
        return
    for name in audit.outputs.differing(outputs):
        if name not in audit.unsteady:
            audit.find("output", name, f"depends on the data beyond what was released ({inputs})")


def _account(audit: _Audit) -> None:
    """Compute the cost of the recorded releases independently and compare it with the promise."""
    scales: dict[Mechanism, float] = {}
    for number, opening in enumerate(audit.recording.openings):
        guarantee = opening.guarantee
        entries = [entry for entry in audit.recording.log if entry.door == number]
        if not entries or guarantee is None or guarantee.unproven or math.isinf(guarantee.epsilon):
            continue
        parts: list[Gauss | Pure] = []
        for what in dict.fromkeys(entry.planned.what for entry in entries):
            same = [entry for entry in entries if entry.planned.what == what]
            planned = same[0].planned
            if len(same) > planned.count:
                audit.find(
                    "count",
                    f"{what!r}",
                    f"released {len(same)} times, planned {planned.count} times",
                )
            if planned not in guarantee.releases:
                audit.find("plan", f"{what!r}", "what was released is not what the guarantee names")
            parts.append(_part(audit, opening, planned, len(same), scales))
        due = epsilon_of(parts, guarantee.delta)
        if due > guarantee.epsilon * (1 + _ACCOUNT) + 1e-3:
            says = f"costs ε = {due:.4g}, its guarantee says {guarantee.epsilon:.4g}"
            audit.find("price", f"{opening.title!r}", says)


def _part(
    audit: _Audit, opening: Opening, planned: Any, count: int, scales: dict[Any, float]
) -> Gauss | Pure:
    mechanism = planned.mechanism
    if not hasattr(mechanism, "mu"):
        return Pure(mechanism.cost.epsilon, count)
    if mechanism not in scales:
        scales[mechanism] = independent_checks.measured_scale(mechanism, opening.source)
    drawn = mechanism.domain.reach / scales[mechanism]
    if drawn > mechanism.mu * (1 + _ACCOUNT):
        audit.find(
            "price",
            f"{planned.what!r} of {opening.title!r}",
            f"sensitivity over drawn noise is {drawn:.4g}, the mechanism is accounted at "
            f"{mechanism.mu:.4g}",
        )
    # The measured standard deviation is an upper bound, so where both agree the stated mu is more
    # precise.
    return Gauss(max(drawn, mechanism.mu), count)


def _samplers(audit: _Audit, exact: bool, floats: set[str]) -> None:
    for entry in audit.recording.log:
        if (
            exact
            and entry.planned.mechanism.sampler != "exact"
            and entry.planned.what not in floats
        ):
            audit.find(
                "sampler",
                f"{entry.planned.what!r} of {entry.title!r}",
                "drawn in floating point: the low bits of a release can reveal what noise hides",
            )


def _noise(audit: _Audit, simulated: bool, rolls: int) -> None:
    for entry in _one_of_each(audit.recording.log, lambda entry: entry.planned.mechanism):
        source = audit.recording.openings[entry.door].source
        for says in independent_checks.noise_problems(
            entry.planned.mechanism, entry.value, source, rolls=rolls
        ):
            audit.find("noise", f"{entry.planned.what!r} of {entry.title!r}", says)
    for opening in _one_of_each(audit.recording.openings, lambda opening: type(opening.source)):
        for says in independent_checks.source_problems(opening.source, simulated=simulated):
            audit.find("entropy", f"{opening.title!r}", says)
    for opening in audit.recording.openings:
        for says in (
            independent_checks.start_problems(sorted(set(opening.starts))) if opening.starts else ()
        ):
            audit.find("entropy", f"{opening.title!r}", says)
    for entry in audit.recording.log:
        redrawn = entry.redrawn() if entry.streams else None
        if redrawn is not None and not np.array_equal(redrawn, entry.handed_out):
            where = f"{entry.planned.what!r} of {entry.title!r}"
            audit.find(
                "noise",
                where,
                "what was handed out is not what the mechanism draws from the door's stream",
            )
        if not entry.streams:
            audit.find(
                "entropy",
                f"{entry.planned.what!r} of {entry.title!r}",
                "no stream of the door was drawn from",
            )
    _reused(audit)


def _one_of_each(items: Sequence[Any], key: Callable[[Any], Any]) -> Iterator[Any]:
    yield from {key(item): item for item in reversed(items)}.values()


def _reused(audit: _Audit) -> None:
    """No two releases may draw from one stream.

    The exception is a vault's key, which repeats a record's noise on purpose, for the same value
    only.
    """
    begun: dict[bytes, str] = {}
    for opening in audit.recording.openings:
        for label, start in zip(opening.labels, opening.starts, strict=True):
            if opening.source.name == "seed":
                continue
            earlier = begun.setdefault(start, label)
            if opening.source.name != "keyed" and begun[start] is not label:
                audit.find(
                    "entropy",
                    f"{opening.title!r}",
                    f"{label!r} and {earlier!r} draw from one stream",
                )
            elif earlier != label:
                audit.find(
                    "entropy", f"{opening.title!r}", "two names have one stream under the key"
                )
    stood: dict[bytes, tuple[str, bytes]] = {}
    for entry in audit.recording.log:
        if audit.recording.openings[entry.door].source.name == "keyed" and entry.by_record:
            where = f"{entry.planned.what!r} of {entry.title!r}"
            for start, row in zip(entry.starts, entry.value, strict=True):
                content = (entry.context, np.ascontiguousarray(row).tobytes())
                if stood.setdefault(start, content) != content:
                    audit.find(
                        "entropy",
                        where,
                        "the key adds the same noise to two values: their difference is revealed",
                    )
            for label, name, row in zip(entry.labels, entry.names, entry.value, strict=False):
                seal = hashlib.sha256(np.ascontiguousarray(row).tobytes()).hexdigest()
                if not (label.startswith(f"{name}/{entry.context}") and seal in label):
                    audit.find(
                        "entropy",
                        where,
                        "a record's noise does not depend on its name, function and value",
                    )
                    break


def _other_noise(audit: _Audit, data: object) -> None:
    """Other streams must give other noise, unless equal whole numbers are likely by chance."""
    again = RecordingListener(audit.seed + 1)
    collect(audit.run, data, again, seed=audit.seed)
    for entry, repeated in zip(audit.recording.log, again.log, strict=False):
        if (
            entry.released.dtype.kind != "f"
            or entry.released.shape != entry.value.shape
            or entry.value.size < 2
        ):
            continue
        if np.array_equal(entry.released - entry.value, repeated.released - repeated.value):
            where = f"{entry.planned.what!r} of {entry.title!r}"
            audit.find(
                "entropy", where, "the noise is the same whatever stream the door draws it from"
            )
            return


_FAR, _HUGE = 1e6, 1e308


def neighbours_of(
    data: object,
    *,
    records: Sequence[int] = (0,),
    removed: bool = False,
    bounds: tuple[float, float] | None = None,
) -> list[Neighbour]:
    """Return copies of `data` with one record replaced by extreme values.

    Parameters:
        data: an array, or a tuple of arrays with one row per record.
        records: the rows to replace, one at a time.
        removed: whether each of them is also treated as absent.
        bounds: the range of real numbers, (0, 1) for pixels; by default records also go far out.
    """
    arrays, rebuild = _arrays(data)
    neighbours = []
    for record in records:
        for name, rows in _rows(arrays, record % len(arrays[0]), bounds):
            changed = [array.copy() for array in arrays]
            for array, row in zip(changed, rows, strict=True):
                array[record] = row
            neighbours.append(
                Neighbour(
                    f"{name}, record {record}", rebuild(changed), record=record % len(arrays[0])
                )
            )
        if removed:
            position = record % len(arrays[0])
            neighbours.append(
                Neighbour(f"absent, record {record}", data, record=position, absent=(position,))
            )
    return neighbours


def unrelated_datasets(
    data: object, *, seed: int = 0, bounds: tuple[float, float] | None = None
) -> list[Any]:
    """Return data sets of the same shapes and the same public domains, but with other content."""
    arrays, rebuild = _arrays(data)
    rng = np.random.default_rng(seed)
    makers = (_random, _constant, _constant_high, _shuffled)
    return [rebuild([make(array, rng, bounds) for array in arrays]) for make in makers]


def _arrays(data: object) -> tuple[list[Array], Any]:
    arrays = [np.asarray(part) for part in data] if isinstance(data, tuple) else [np.asarray(data)]
    if len({len(array) for array in arrays}) != 1 or len(arrays[0]) < 3:
        raise InvalidParameter(
            "data must be arrays with one row per record, of at least three records."
        )
    return arrays, (tuple if isinstance(data, tuple) else lambda parts: parts[0])


def _rows(
    arrays: list[Array], record: int, bounds: tuple[float, float] | None
) -> Iterator[tuple[str, list[Array]]]:
    """Yield replacements of a record: all arrays at the same extreme, and each array by itself."""
    own_rows = [array[record].copy() for array in arrays]
    source = (record + len(arrays[0]) // 2) % len(arrays[0])
    yield "a copy of another", [array[source] for array in arrays]
    extremes = [dict(_extremes(array, record, bounds)) for array in arrays]
    for name in dict.fromkeys(name for each in extremes for name in each):
        yield name, [each.get(name, row) for each, row in zip(extremes, own_rows, strict=True)]
    if len(arrays) > 1:
        for part, each in enumerate(extremes):
            for name in ("low", "high"):
                yield (
                    f"{name} in part {part}",
                    [*own_rows[:part], each[name], *own_rows[part + 1 :]],
                )


def _extremes(
    array: Array, record: int, bounds: tuple[float, float] | None
) -> Iterator[tuple[str, Array]]:
    row = array[record]
    low, high = _ends(array, bounds)
    yield "low", np.full_like(row, low)
    yield "high", np.full_like(row, high)
    if array.dtype.kind == "f":
        yield "opposite", (low + high - row).astype(row.dtype)
        yield "zero", np.clip(np.zeros_like(row), low, high)
        if np.ndim(row):
            axis = np.clip(np.zeros_like(row), low, high)
            axis.reshape(-1)[0] = high
            yield "one axis", axis
        for name, value in (("NaN", np.nan), ("infinite", np.inf), ("huge", _HUGE)):
            with np.errstate(over="ignore"):  # in single precision the value becomes infinite
                yield name, np.full_like(row, value)
        if bounds is None:
            yield "far", (np.where(np.asarray(row) < 0, -1, 1) * _FAR).astype(row.dtype)
            yield (
                "far and opposite",
                (np.where(np.asarray(row) < 0, 1, -1) * _FAR).astype(row.dtype),
            )


def _ends(array: Array, bounds: tuple[float, float] | None) -> tuple[Any, Any]:
    if array.dtype.kind == "f":
        if bounds is not None:
            ends: tuple[Any, Any] = bounds
            return ends
        reach = float(np.abs(array).max(initial=0)) or 1.0
        return -reach, reach
    return array.min(), array.max()


def _random(array: Array, rng: np.random.Generator, bounds: tuple[float, float] | None) -> Array:
    low, high = _ends(array, bounds)
    if array.dtype.kind == "f":
        return np.asarray(rng.uniform(low, high, array.shape), array.dtype)
    return np.asarray(rng.integers(int(low), int(high) + 1, array.shape), array.dtype)


def _constant(array: Array, rng: np.random.Generator, bounds: tuple[float, float] | None) -> Array:
    return np.full_like(array, _ends(array, bounds)[0])


def _constant_high(
    array: Array, rng: np.random.Generator, bounds: tuple[float, float] | None
) -> Array:
    return np.full_like(array, _ends(array, bounds)[1])


def _shuffled(array: Array, rng: np.random.Generator, bounds: tuple[float, float] | None) -> Array:
    return np.asarray(array[rng.permutation(len(array))][::-1].copy())

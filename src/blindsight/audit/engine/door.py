"""The audit at the door: run the real code on neighbours with frozen entropy, and replay what was
released.

    report = audit_door(run, data, neighbours=neighbours_of(data), unrelated=[noise])
    print(report)  # "not refuted", or what contradicts the promise, and where

`run(data, folder)` gives, saves in `folder`, prints, logs and raises whatever leaves. One replay on
a neighbour, with the values that were released on the data handed out again, tests two things at
once: that what stands at each door moved by no more than the mechanism's reach (given equal earlier
releases), and that every output (`outputs`) is the same, byte by byte, because it may depend on the
data through the released values only. The latter is asked on unrelated data too. A run with a
ledger must charge every account at least what its doors promise. An audit refutes; it does not
prove.

Neighbours with one record at extremes, and unrelated data sets, are made without knowing what the
data are. A data set is an array or a tuple of arrays with one row per record. Real numbers go to
both ends, to the opposite, to zero, far out and onto one axis, and become NaN, infinite and 1e308;
whole numbers and labels go to their least and largest; a record becomes a copy of another; or it is
absent.
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
# What two accountants may differ by, and the measured scale of the noise from the stated one.
_ACCOUNT = 0.02


@dataclass(frozen=True)
class Neighbour:
    """Data that differ from the audited ones in one unit.

    `record` is the row that was replaced, where that is known; `absent` are rows of the audited
    data that are to count as not there (then `data` is the audited data themselves); `removed` says
    that the data really lack a unit. Under "add or remove one" a replaced record is two steps away,
    so it may move a release twice as far.
    """

    name: str
    data: object
    record: int | None = None
    absent: tuple[int, ...] = ()
    removed: bool = False

    @property
    def lacks(self) -> bool:
        """Whether the unit is not there at all."""
        return self.removed or bool(self.absent)


@dataclass(frozen=True)
class DoorFinding:
    """One contradiction: what kind, where, and in words."""

    kind: str
    where: str
    says: str

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.where}: {self.says}" if self.where else f"{self.kind}: {self.says}"
        )


@dataclass(frozen=True)
class Reached:
    """How far neighbours moved a release, of what it allows: a small share means that a small bug
    could hide here.
    """

    what: str
    moved: float
    allowed: float

    @property
    def share(self) -> float:
        """1 where the neighbours used all that is allowed."""
        return self.moved / self.allowed if self.allowed > 0 else 0.0


@dataclass(frozen=True)
class DoorAudit:
    """What was found; nothing found means not refuted, never proved."""

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
    """One audit while it runs."""

    run: Run
    seed: int
    recording: RecordingListener
    outputs: Outputs
    findings: dict[tuple[str, str], DoorFinding] = field(default_factory=dict)
    reached: dict[str, tuple[float, float]] = field(default_factory=dict)
    # What stood at the doors on neighbours in the same record, which are neighbours of each other.
    stood: dict[int, list[tuple[Neighbour, list[Any]]]] = field(default_factory=dict)
    unsteady: set[str] = field(default_factory=set)
    replays: int = 0

    def find(self, kind: str, where: str, says: str) -> None:
        """One finding for each kind and place: the rest is echo."""
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
    """Audit everything that `run(data, folder)` lets out.

    Parameters:
        neighbours: data that differ in one unit of the guarantee, at extremes.
        unrelated: wholly different data with the same public facts.
        exact: whether every release must be drawn by an exact sampler, but for those named in
            `floats`.
        simulated: whether the run is seeded on purpose.
        rolls: how many numbers each mechanism draws again.
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
    """On the same data everything comes out the same, or a clock or entropy of its own is in it."""
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
    """With nobody at the door, and the same streams, everything comes out as it was recorded."""
    audit.replays += 1
    with unheard(audit.seed):
        outputs = collect(audit.run, data, None, seed=audit.seed)
    for name in audit.outputs.differing(outputs):
        if name not in audit.unsteady:
            audit.find("listener", name, "differs when nobody listens at the door")


def _ledger(audit: _Audit, data: object) -> None:
    """With a ledger, outputs are the same, and every account is charged at least what is due."""
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
    """Two that differ from the audited data in the same record are neighbours too: extremes against
    extremes.
    """
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
    """`removals`: how many times a unit is taken away or put in between the two."""
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
    """Pure releases: what was released may be e^epsilon times as likely here as on the neighbour,
    never more.
    """
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
    """What was really released, priced by the second accountant, against what each door
    promised.
    """
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
    # What is drawn was measured from above, so the stated mu is the sharper of the two where both
    # agree.
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
                "drawn in floating point: the low bits of what leaves can betray what it hides",
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
    """No two releases from one stream; a vault's key repeats a record's noise on purpose, on one
    and the same value.
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
                        "one noise under the key on two values: how they differ shows",
                    )
            for label, name, row in zip(entry.labels, entry.names, entry.value, strict=False):
                seal = hashlib.sha256(np.ascontiguousarray(row).tobytes()).hexdigest()
                if not (label.startswith(f"{name}/{entry.context}") and seal in label):
                    audit.find(
                        "entropy",
                        where,
                        "a record's noise does not hang on its name, function and value",
                    )
                    break


def _other_noise(audit: _Audit, data: object) -> None:
    """With other streams at the door the noise is other, too; whole numbers may come out equal by
    chance.
    """
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
    """`data` with one record replaced by extremes, for each of `records`; with `removed`, also
    absent.

    `bounds` are what real numbers may be (pixels: (0, 1)); without them records go far out too.
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
    """Data of the same shapes and of the same public domains, but otherwise wholly different."""
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
    """What the record may become: every array at the same extreme, and each array by itself."""
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
            with np.errstate(over="ignore"):  # beyond single precision, which makes it infinite
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

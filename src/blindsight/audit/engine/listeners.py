"""Listeners attached to doors: one records every release, and one replays recorded releases.

Both replace the door's entropy by streams that depend on a seed and the stream's label, so that two
runs on different data draw the same batches and the same noise. The door's own source is recorded,
to be examined separately. A third listener only supplies a generator, for attacks that run an
estimator many times (`drawing_from`).
"""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np

from blindsight.core.arrays import Array
from blindsight.core.errors import UnchargedRelease
from blindsight.privacy.accounting import Planned
from blindsight.privacy.cost import Cost
from blindsight.privacy.door import Door, Passage, listening
from blindsight.privacy.entropy import RandomState, Source, source_of
from blindsight.privacy.guarantee import Guarantee
from blindsight.privacy.ledger import Ledger
from blindsight.privacy.ledger.amounts import MICRO

__all__ = [
    "ChargedAccount",
    "DoorEntry",
    "Opening",
    "RecordingListener",
    "ReplayListener",
    "charging",
    "drawing_from",
    "unheard",
]

_URANDOM = os.urandom
_BUDGET = 1e6  # no account runs out during an audit
START = 512  # bytes of each of the door's own streams that are examined


@dataclass(frozen=True)
class DoorEntry:
    """One value that passed a door: the planned release, the value before and after, the streams.

    `streams` are seeds of the audit's own streams in the order of their requests, `starts` the
    first bytes of the door's own streams.
    """

    door: int
    title: str
    planned: Planned
    number: int
    value: Array
    released: Array
    streams: tuple[int, ...]
    starts: tuple[bytes, ...]
    labels: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    context: str = ""

    @property
    def by_record(self) -> bool:
        """Whether every record had a stream of its own."""
        return np.ndim(self.value) > 0 and len(self.streams) == len(self.value)

    def redrawn(self) -> Array | None:
        """Return what the mechanism draws from the same streams at the same value, if known."""
        mechanism: Any = self.planned.mechanism
        rngs = [np.random.default_rng(seed) for seed in self.streams]
        if len(rngs) == 1:
            return np.asarray(mechanism.release(self.value, rng=rngs[0]))
        if hasattr(
            mechanism, "share"
        ):  # one stream per party: its noise is what it adds to an update of zeros
            steps = np.rint(self.value / mechanism.step).astype(np.int64)
            nothing = np.zeros(self.value.shape)
            return np.asarray(
                np.sum([mechanism.share(nothing, rng=rng) for rng in rngs], axis=0) + steps
            )
        if self.by_record:
            parts = [
                mechanism.release(self.value[i : i + 1], rng=rng) for i, rng in enumerate(rngs)
            ]
            return np.asarray(np.concatenate(parts))
        return None

    @property
    def handed_out(self) -> Array:
        """Return the released value in the form of `redrawn`: sums of shares in whole steps."""
        mechanism: Any = self.planned.mechanism
        if len(self.streams) > 1 and hasattr(mechanism, "share"):
            return np.asarray(np.rint(self.released / mechanism.step), np.int64)
        return self.released

    @property
    def name(self) -> str:
        """The release and its door, for messages."""
        count = f" {self.number}" if self.planned.count > 1 else ""
        return f"{self.planned.what!r}{count} of {self.title!r}"


@dataclass
class Opening:
    """A door that was opened: its guarantee, and the source it would have drawn from."""

    title: str
    guarantee: Guarantee | None
    source: Any
    labels: list[str] = field(default_factory=list)
    starts: list[bytes] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    heard: int = 0

    def latest(self) -> list[tuple[int, bytes, str]]:
        """Seed, start and label of the streams that were asked for since the last release."""
        new = zip(
            self.labels[self.heard :],
            self.seeds[self.heard :],
            self.starts[self.heard :],
            strict=True,
        )
        self.heard = len(self.labels)
        return [(seed, start, label) for label, seed, start in new]


class _Streams:
    """Streams that depend on seed, door and label; records the start of the door's own streams."""

    def __init__(self, seed: int, number: int, opening: Opening) -> None:
        self.name = opening.source.name
        self._seed, self._number, self._opening = seed, number, opening
        self._asked: Counter[str] = Counter()

    def stream(self, label: str, *, exact: bool) -> np.random.Generator:
        """Return the stream of this label.

        A repeated request continues the stream, unless its noise is meant to repeat.
        """
        # From the system's own entropy: taking frozen bytes here would shift them for the run.
        with mock.patch("os.urandom", _URANDOM):
            start = bytes(self._opening.source.stream(label, exact=exact).bytes(START))
        return self._noted(label, label, start)

    def _noted(self, label: str, name: str, start: bytes) -> np.random.Generator:
        """Return the audit's own stream of this name, and record the door's label and stream."""
        self._opening.labels.append(label)
        self._opening.starts.append(start)
        turn = 0 if self.name == "keyed" else self._asked[name]
        self._asked[name] += 1
        digest = hashlib.sha256(f"{self._seed}/{self._number}/{turn}/{name}".encode()).digest()
        self._opening.seeds.append(int.from_bytes(digest[:16], "big"))
        return np.random.default_rng(self._opening.seeds[-1])


class _ValueStreams(_Streams):
    """Streams in place of a vault's source, whose noise depends on the value it is added to."""

    def value_stream(self, label: str, value: Array, *, exact: bool) -> np.random.Generator:
        """The stream of this label and value."""
        with mock.patch("os.urandom", _URANDOM):
            own = self._opening.source.value_stream(label, value, exact=exact)
            start = bytes(own.bytes(START))
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return self._noted(label, f"{label}/{digest}", start)

    def keep(self, label: str, value: Array, released: Array) -> None:
        """Have the vault record the release, as it does without an audit."""
        self._opening.source.keep(label, value, released)

    def public_seed(self) -> int:
        """The seed of public randomness."""
        return int(self._opening.source.public_seed())


def _streams_like(seed: int, number: int, opening: Opening) -> _Streams:
    """Streams that a door may use in place of its own source."""
    kind = _ValueStreams if hasattr(opening.source, "value_stream") else _Streams
    return kind(seed, number, opening)


class _Listener:
    """The base class of both listeners, which draws from the audit's own streams."""

    def __init__(self, seed: int, absent: Sequence[int]) -> None:
        self.seed, self._absent = seed, np.asarray(absent, np.int64)
        self.openings: list[Opening] = []

    def opened(self, door: Door) -> Any:
        """Record the opening, and return streams of the audit for it."""
        opening = Opening(door.what, door.guarantee, door._source)
        self.openings.append(opening)
        return _streams_like(self.seed, len(self.openings), opening)

    def absent(self, n: int) -> Array | None:
        """Return a mask of the records that are treated as absent."""
        return np.isin(np.arange(n), self._absent % n) if self._absent.size and n else None

    def _door_of(self, passage: Passage) -> int:
        """Return the newest door of this title; doors of one title are used in sequence."""
        titles = [opening.title for opening in self.openings]
        return len(titles) - 1 - titles[::-1].index(passage.title)


class RecordingListener(_Listener):
    """Records every value before and after its noise."""

    def __init__(self, seed: int = 0, *, absent: Sequence[int] = ()) -> None:
        super().__init__(seed, absent)
        self.log: list[DoorEntry] = []

    def passing(self, passage: Passage) -> None:
        """Do nothing, so that the mechanism draws its noise."""

    def passed(self, passage: Passage, released: Array) -> None:
        door = self._door_of(passage)
        drawn = self.openings[door].latest()
        self.log.append(
            DoorEntry(
                door,
                passage.title,
                passage.planned,
                passage.number,
                np.array(passage.value),
                np.array(released),
                tuple(seed for seed, _, _ in drawn),
                tuple(start for _, start, _ in drawn),
                tuple(label for _, _, label in drawn),
                names=passage.names,
                context=passage.about,
            )
        )


@contextmanager
def unheard(seed: int) -> Iterator[None]:
    """Run without a listener, while every door draws from the streams of a recording.

    A run then gives the same outputs as the recording, unless its code behaves differently when no
    listener is attached.
    """
    number = 0

    def streams(random_state: RandomState | Source) -> _Streams:
        nonlocal number
        number += 1
        return _streams_like(seed, number, Opening("", None, source_of(random_state)))

    with mock.patch("blindsight.privacy.door.source_of", streams):
        yield


@dataclass
class ChargedAccount:
    """A ledger that every door was charged to, and what was due."""

    ledger: Ledger
    due: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)

    def open(self, key: str | None, guarantee: Guarantee) -> None:
        """Record what a door must be charged.

        Doors with the same idempotency key are one charge where the noise is derived from a vault's
        key, because both release the same value.
        """
        for cost in guarantee.costs:
            named = self.due.setdefault((cost.unit, cost.neighbours), {})
            repeats = key is not None and guarantee.entropy == "keyed"
            label = str(key) if repeats else f"door {len(named)}"
            named[label] = max(named.get(label, 0.0), cost.epsilon)

    def problems(self) -> Iterator[str]:
        """Yield accounts that were charged less than is due, and a ledger that does not verify."""
        charged: Counter[tuple[str, str]] = Counter()
        for entry in self.ledger.entries():
            if entry.kind == "charge":
                charged[entry.unit, entry.neighbours] += entry.micro_epsilon
        for (unit, neighbours), named in self.due.items():
            due = math.fsum(named.values())
            paid = charged[unit, neighbours] / MICRO
            if paid < due * (1 - 1e-9) - 1e-9:
                yield (
                    f"the account per {unit} ({neighbours}) was charged {paid:.6g}, due is "
                    f"{due:.6g}"
                )
        if not self.ledger.verify():
            yield "the ledger does not verify after the run"


@contextmanager
def charging(costs: Sequence[Cost]) -> Iterator[ChargedAccount]:
    """Charge every door that is opened without a ledger to one with a large budget."""
    opened = Door.__init__
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        with mock.patch("os.urandom", _URANDOM):
            ledger = stack.enter_context(Ledger(f"{folder}/ledger.db", dataset="audit"))
            for unit, neighbours in sorted({(cost.unit, cost.neighbours) for cost in costs}):
                grant: Any = {"unit": unit, "neighbours": neighbours}
                ledger.grant(Cost(epsilon=_BUDGET, delta=0.9, **grant))
        account = ChargedAccount(ledger)

        def charged(door: Door, guarantee: Guarantee, **options: Any) -> None:
            if options.get("ledger") is None:
                options["ledger"] = ledger
                account.open(options.get("key"), guarantee)
            opened(door, guarantee, **options)

        stack.enter_context(mock.patch.object(Door, "__init__", charged))
        yield account


class ReplayListener(_Listener):
    """Releases the recorded values in order, as long as the run opens the same doors in that order.

    `values` are this run's values before the noise. `divergence` says where the runs first differ,
    if they do; from there on releases are drawn again and nothing is compared, because later
    differences follow from the first.
    """

    def __init__(
        self, log: Sequence[DoorEntry], seed: int = 0, *, absent: Sequence[int] = ()
    ) -> None:
        super().__init__(seed, absent)
        self._log = log
        self.values: list[Array] = []
        self.divergence: str | None = None

    def passing(self, passage: Passage) -> Array | None:
        """Return the recorded release, if this is the same door."""
        if self.divergence is None:
            self.divergence = self._differs(passage)
        if self.divergence is not None:
            return None
        entry = self._log[len(self.values)]
        self.values.append(np.array(passage.value))
        return entry.released.copy()

    def passed(self, passage: Passage, released: Array) -> None:
        """Do nothing, because `passing` has recorded the value."""

    def finished(self) -> str | None:
        """Return where the runs first differ, including that this one ended too early."""
        if self.divergence is None and len(self.values) < len(self._log):
            return (
                f"{self._log[len(self.values)].name} was not released: how much is released "
                "depends on the data"
            )
        return self.divergence

    def _differs(self, passage: Passage) -> str | None:
        if len(self.values) >= len(self._log):
            return (
                f"{passage.planned.what!r} was released once more: how much is released depends on "
                "the data"
            )
        entry = self._log[len(self.values)]
        if entry.planned.what != passage.planned.what or entry.number != passage.number:
            return (
                f"{passage.planned.what!r} was released in place of {entry.name}: the order of "
                "releases depends on the data"
            )
        if entry.title != passage.title:
            return (
                f"the title of the door of {entry.planned.what!r}, which goes to the ledger, "
                "depends on the data"
            )
        if entry.planned != passage.planned:
            return f"{entry.name}: the mechanism or its plan depends on the data"
        if (
            entry.value.shape != np.shape(passage.value)
            or entry.value.dtype != np.asarray(passage.value).dtype
        ):
            return f"{entry.name}: the size or type of what is released depends on the data"
        return None


class _Drawing:
    """Records nothing; every stream of every door is one generator."""

    def __init__(self, rng: np.random.Generator, absent: Sequence[int]) -> None:
        self._rng, self._absent = rng, np.asarray(absent, np.int64)

    def opened(self, door: Door) -> Any:
        self.name = door._source.name
        return self

    def stream(self, label: str, *, exact: bool) -> np.random.Generator:
        return np.random.default_rng(int(self._rng.integers(1 << 62)))

    def passing(self, passage: Passage) -> None: ...

    def passed(self, passage: Passage, released: Array) -> None: ...

    def absent(self, n: int) -> Array | None:
        return np.isin(np.arange(n), self._absent) if self._absent.size else None


@contextmanager
def drawing_from(rng: np.random.Generator, *, absent: Sequence[int] = ()) -> Iterator[None]:
    """Have estimators draw their noise from `rng` and treat the records in `absent` as absent."""
    with warnings.catch_warnings(), listening(_Drawing(rng, absent)):
        warnings.simplefilter("ignore", UnchargedRelease)  # toy data, and nothing leaves
        yield

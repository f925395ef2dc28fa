"""The door: the only code that takes a value computed from private data and returns one that may
leave.

    guarantee = Guarantee(releases=plan, ...)  # made before any private value is seen
    door = Door(guarantee, what="a metric", ledger=ledger, random_state=None)  # charged here
    noisy = door.release("margin", value)
    total = door.total("gradients", rows)

The mechanism is the plan's own: what is drawn and what is accounted are one object, and what the
plan does not name, or names less often, is refused. Values are projected into the mechanism's
domain first, so that no private value can make a release fail. An auditor can listen (`listening`):
see each value before its noise, freeze the entropy, hand out other releases instead.

Before that, records are made usable: numbers that are not finite become zeros (`finite_rows`), long
vectors shorter (`clip_norm`).
"""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter, NotPlanned, UnchargedRelease
from blindsight.privacy.accounting import Planned
from blindsight.privacy.entropy import RandomState, Source, source_of
from blindsight.privacy.guarantee import Guarantee
from blindsight.privacy.mechanisms import to_fields

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Ledger

__all__ = [
    "FILLED",
    "LARGEST_FEATURE",
    "MOST_ROWS",
    "Door",
    "Listener",
    "Outer",
    "Passage",
    "PlainRows",
    "Rows",
    "added",
    "clip_norm",
    "finite_rows",
    "listening",
    "say_uncharged",
    "unusable_rows",
]

Array = NDArray[Any]

# Rows are added in blocks of so many, and the blocks with their rounding errors carried along.
_BLOCK = 1024
MOST_ROWS = 1 << 27
# What share of its bound a row may fill. n rows of at most B, added so, give a sum that is off by
# at most (_BLOCK + 8) 2^-53 n B (Higham 2002, sections 3.1 and 4.3), and two neighbouring sums by
# twice that: for MOST_ROWS rows 2^-15 of B. Casacuberta et al. (2022) turn sums that forget it
# into attacks. A share that followed n would itself move every row when one is added.
FILLED = 1 - 2.0**-15


@dataclass(frozen=True)
class Passage:
    """One value that is about to be released.

    Parameters:
        title: what the door releases (`Door.what`).
        planned: the planned release.
        number: the sequence number of the value under this plan, from 1.
        value: the value before its noise.
        names: the records' names, where they are released one by one (`release_each`).
        about: which function the values are of, there.
    """

    title: str
    planned: Planned
    number: int
    value: Array
    names: tuple[str, ...] = ()
    about: str = ""


class Listener(Protocol):
    """What an auditor does at the door; every method may do nothing."""

    def opened(self, door: Door) -> Source | None:
        """Note a door that was opened; return a source that replaces its own, or None."""
        ...

    def passing(self, passage: Passage) -> Array | None:
        """Note a value before its release; return what to release in its place, or None."""
        ...

    def passed(self, passage: Passage, released: Array) -> None:
        """Note a value that was released, with what was released for it."""
        ...

    def absent(self, n: int) -> Array | None:
        """Return a mask (n,) of the records to treat as absent, or None."""
        ...


class _NullListener:
    """The listener of every door that nobody audits.

    A door always has a listener and treats all of them alike, so that its code cannot behave
    differently while it is audited.
    """

    def opened(self, door: Door) -> None:
        """Return None: the door keeps its own source."""

    def passing(self, passage: Passage) -> None:
        """Return None: the mechanism draws the noise."""

    def passed(self, passage: Passage, released: Array) -> None:
        """Do nothing: nobody audits this door."""

    def absent(self, n: int) -> None:
        """Return None: all records are present."""


_listener: ContextVar[Listener] = ContextVar("listener", default=_NullListener())  # noqa: B039


@contextmanager
def listening(listener: Listener) -> Iterator[Listener]:
    """Attach a listener to every door that is opened in this context."""
    token = _listener.set(listener)
    try:
        yield listener
    finally:
        _listener.reset(token)


class Rows(Protocol):
    """Rows of records that need not be in memory: their norms, and a weighted sum of those whose
    weight is above 0.

    Norms must not be underestimated, and sums must be computed by `added`. The rows that are
    clipped and those that are added then agree to within the rounding that the door allows for.
    """

    def __len__(self) -> int: ...

    def norms(self, order: float) -> Array: ...

    def weighted_sum(self, weights: Array) -> Array: ...


def added(weights: Array, part: Callable[[Array], Array]) -> Array:
    """The sum over all rows whose weight is above 0, `part` of these row numbers at a time.

    Blocks are added with their rounding errors (Kahan), so that the error does not grow with the
    number of blocks. Rows of weight 0 are left out: zero times NaN is NaN.
    """
    rows = np.flatnonzero(weights > 0)
    total = np.asarray(part(rows[:_BLOCK]), np.float64)
    lost = np.zeros_like(total)
    for start in range(_BLOCK, len(rows), _BLOCK):
        block = part(rows[start : start + _BLOCK]) - lost
        grown = total + block
        lost = (grown - total) - block
        total = grown
    return total


@dataclass(frozen=True)
class Outer:
    """Rows a_i b_i' (records' gradients of a linear map), clipped without the products."""

    left: Array
    right: Array

    def __len__(self) -> int:
        return len(self.left)

    def norms(self, order: float) -> Array:
        """|a| |b|: of the outer product, in l1 and l2 alike."""
        return np.asarray(
            np.linalg.norm(self.left, ord=order, axis=1)
            * np.linalg.norm(self.right, ord=order, axis=1)
        )

    def weighted_sum(self, weights: Array) -> Array:
        """Sum of w_i a_i b_i' over the rows that count."""
        return added(
            weights, lambda rows: (self.left[rows] * weights[rows, None]).T @ self.right[rows]
        )


@dataclass(frozen=True)
class PlainRows:
    """Rows as an array (n, ...)."""

    values: Array

    def __len__(self) -> int:
        return len(self.values)

    def norms(self, order: float) -> Array:
        width = int(np.prod(self.values.shape[1:]))
        return np.asarray(
            np.linalg.norm(self.values.reshape(len(self.values), width), ord=order, axis=1)
        )

    def weighted_sum(self, weights: Array) -> Array:
        return added(weights, lambda rows: np.tensordot(weights[rows], self.values[rows], axes=1))


class Door:
    """Charges a guarantee once, and then releases what its plan names, as often as it says.

    Parameters:
        guarantee: what is promised; its releases are the plan.
        what: what this is, for the ledger and the auditor ("codes of 500 images").
        ledger: charged with the guarantee's costs, at once; without one a warning says that nothing
            was charged.
        random_state: None for the operating system's entropy; a seed makes a simulation; or a
            `Source` such as a vault's.
        key: the ledger's idempotency key: the same release, charged once however often it is tried.

    Examples:
        >>> from blindsight.privacy import Planned
        >>> from blindsight.privacy.mechanisms import KaryResponse
        >>> noise = KaryResponse(epsilon=8.0, k=4, unit="record")
        >>> cell = Planned(what="cell", mechanism=noise)
        >>> promised = Guarantee(releases=(cell,), model="local", entropy="seed")
        >>> door = Door(promised, what="cells of three photos", random_state=0)
        >>> door.release("cell", [2, 2, 3])
        array([2, 2, 3])
        >>> try:
        ...     door.release("cell", [2, 2, 3])
        ... except NotPlanned as refused:
        ...     print(str(refused).split(".")[0])
        'cell' was planned 1 times and has passed as often
    """

    def __init__(
        self,
        guarantee: Guarantee,
        *,
        what: str,
        ledger: Ledger | None = None,
        random_state: RandomState | Source = None,
        key: str | None = None,
    ) -> None:
        self.guarantee, self.what = guarantee, what
        self._planned = {item.what: item for item in guarantee.releases}
        if len(self._planned) != len(guarantee.releases):
            raise InvalidParameter("the releases of a plan must have names of their own.")
        self._used: Counter[str] = Counter()
        self._source = source_of(random_state)
        if self._source.name != guarantee.entropy:
            raise InvalidParameter(
                f"the guarantee speaks of entropy {guarantee.entropy!r}, but the door draws from "
                f"{self._source.name!r}."
            )
        self._charge(ledger, key)
        self._listener = _listener.get()
        self._source = self._listener.opened(self) or self._source

    def release(self, what: str, value: Any) -> Array:
        """Release a value, after projecting it into the mechanism's domain."""
        planned = self._next(what, fresh=True)
        return self._pass(planned, planned.mechanism.domain.project(value))

    def total(self, what: str, rows: Any) -> Array:
        """The sum of records' rows, each clipped to the plan's bound in the mechanism's norm,
        released.

        `rows` is an array (n, ...) or a `Rows` that knows its norms and sums without being laid
        out.
        """
        planned = self._next(what, fresh=True)
        order = getattr(planned.mechanism.domain, "order", None)
        if order is None:
            raise InvalidParameter(
                f"{what!r} is released by {planned.mechanism.says}: only additive noise totals "
                "rows."
            )
        given: Rows = (
            rows if hasattr(rows, "weighted_sum") else PlainRows(np.asarray(rows, np.float64))
        )
        if len(given) > MOST_ROWS:
            raise InvalidParameter(
                f"a total takes at most {MOST_ROWS:,} rows, got {len(given):,}: release it in "
                "parts."
            )
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.nan_to_num(given.norms(order), nan=np.inf, posinf=np.inf)
        # Rows whose norm is NaN or infinite get weight 0.
        shrunk = np.minimum(1.0, FILLED * planned.row_bound / np.maximum(norms, 1e-300))
        weights = np.where(np.isfinite(norms), shrunk, 0.0)
        absent = self._listener.absent(len(given))
        weights = weights if absent is None else np.where(absent, 0.0, weights)
        return self._pass(planned, planned.mechanism.domain.project(given.weighted_sum(weights)))

    def together(
        self, what: str, values: Sequence[Any], add: Callable[[list[Array]], Array]
    ) -> Array:
        """A sum whose noise several parties draw, each its own share: nobody sees the sum without
        it.

        Each value is clipped and gets its party's share by the planned mechanism (`share`, in whole
        steps); `add` is handed these and brings them together, by whatever protocol. It counts as
        one release.
        """
        planned = self._next(what, fresh=True)
        mechanism: Any = planned.mechanism
        if not hasattr(mechanism, "share"):
            raise InvalidParameter(
                f"{what!r} is released by {planned.mechanism.says}, which is not drawn in shares."
            )
        exact = np.sum([mechanism.clipped(value) for value in values], axis=0) * mechanism.step
        given = mechanism.domain.project(exact)
        passage = Passage(self.what, planned, self._used[what], given)
        forced = self._listener.passing(passage)
        if forced is not None:
            return forced
        label = f"{self.what}/{what}/{self._used[what]}"
        drawn = [
            mechanism.share(value, rng=self._source.stream(f"{label}/{party}", exact=True))
            * mechanism.step
            for party, value in enumerate(values)
        ]
        released = add(drawn)
        self._listener.passed(passage, released)
        return released

    def release_each(self, what: str, values: Any, names: Sequence[str], *, about: str) -> Array:
        """Every record's value by itself, with noise that depends on its name, the mechanism,
        `about` and the value.

        With a vault's source a record gets the same release whenever it is asked for, alone or
        among others. `about` tells which function the values are of (a digest of it): the same
        noise on two functions of one record, or on two values under one name, would show how they
        differ. A name that stands several times is one record: its first value is released, and
        handed out for all.
        """
        planned = self._next(what)
        given = planned.mechanism.domain.project(values)
        if len(given) != len(names):
            raise InvalidParameter(f"got {len(names)} names for {len(given)} records.")
        first: dict[str, int] = {}
        first_rows = np.array(
            [first.setdefault(name, row) for row, name in enumerate(names)], np.int64
        )
        # As many values as were given, so that how many pictures are equal does not show at the
        # door.
        inside = given[first_rows]
        if self._source.name == "system":
            return self._pass(planned, inside)[first_rows]
        number = self._used[what]
        passage = Passage(self.what, planned, number, inside, tuple(names), about)
        forced = self._listener.passing(passage)
        if forced is not None:
            return forced
        function = f"{about}/{sorted(to_fields(planned.mechanism).items())}"
        exact = planned.mechanism.sampler == "exact"
        parts = []
        for name, value in zip(names, inside, strict=True):
            seal = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
            rng = self._source.stream(f"{name}/{function}/{seal}", exact=exact)
            parts.append(planned.mechanism.release(value[None], rng=rng))
        released = (
            np.concatenate(parts)
            if parts
            else planned.mechanism.release(inside, rng=np.random.default_rng(0))
        )
        self._listener.passed(passage, released)
        return released

    def _charge(self, ledger: Ledger | None, key: str | None) -> None:
        if ledger is None:
            if self._source.name != "seed":
                say_uncharged(self.what)
            return
        if not hasattr(ledger, "charge"):
            raise InvalidParameter(
                f"ledger must be a blindsight.Ledger or None, got {type(ledger).__name__}: open "
                "one with Ledger(path, dataset=...)."
            )
        ledger.charge(self.guarantee.costs, what=self.what, key=key)

    def _next(self, what: str, *, fresh: bool = False) -> Planned:
        if what not in self._planned:
            named = ", ".join(repr(name) for name in self._planned) or "nothing"
            raise NotPlanned(
                f"{what!r} is not in the plan of {self.what!r}, which names {named}. Nothing was "
                "released."
            )
        planned = self._planned[what]
        if fresh and self.guarantee.entropy == "keyed" and _bound_source(self._source) is None:
            raise InvalidParameter(
                f"{what!r} needs fresh noise: a key gives the same noise to the same name, so that "
                "two data sets under it would show their difference. Pass each record's name, "
                "random_state=None, or a vault's training_source, whose noise depends on the value."
            )
        most = planned.count * planned.parts
        if self._used[what] >= most:
            raise NotPlanned(
                f"{what!r} was planned {most} times and has passed as often. Nothing more was "
                "released."
            )
        self._used[what] += 1
        return planned

    def _keep_bound(self, label: str, value: Array, released: Array) -> None:
        """Have a vault note what leaves; it refuses where another value left before."""
        bound = _bound_source(self._source)
        if bound is not None:
            bound.keep(label, value, released)

    def _pass(self, planned: Planned, value: Array) -> Array:
        passage = Passage(self.what, planned, self._used[planned.what], value)
        forced = self._listener.passing(passage)
        if forced is not None:
            return forced
        mechanism = planned.mechanism
        label = f"{self.what}/{planned.what}/{passage.number}"
        exact, bound = mechanism.sampler == "exact", _bound_source(self._source)
        if bound is None:
            rng = self._source.stream(label, exact=exact)
        else:
            label = f"{label}/{sorted(to_fields(mechanism).items())}"
            rng = bound.value_stream(label, value, exact=exact)
        released = mechanism.release(value, rng=rng)
        self._keep_bound(label, value, released)
        self._listener.passed(passage, released)
        return released


def _bound_source(source: Source) -> Any:
    """The source, where its noise depends on the value it is added to (a vault's); else None."""
    return source if hasattr(source, "value_stream") else None


_said: set[str] = set()


def say_uncharged(what: str) -> None:
    """Warn, once for each kind of release, that no ledger was charged."""
    kind = "".join(letter for letter in what if not letter.isdigit())
    if kind not in _said:
        _said.add(kind)
        warnings.warn(
            f"released without a ledger, so nothing was charged: {what}. Pass ledger=, or turn "
            "this off with "
            "warnings.simplefilter('ignore', blindsight.core.errors.UnchargedRelease).",
            UnchargedRelease,
            stacklevel=4,
        )


# Squares of larger numbers, summed over many columns, overflow in single precision.
LARGEST_FEATURE = 1e15


def unusable_rows(rows: ArrayLike) -> NDArray[np.bool_]:
    """Which records (along the last axis) hold NaN, infinity or a number beyond `LARGEST_FEATURE`.

    Parameters:
        rows: numbers, one record along the last axis.

    Returns:
        A mask of the shape of `rows` without its last axis.
    """
    values = np.asarray(rows)
    if values.dtype.kind not in "iuf":
        values = values.astype(np.float64)
    # By the largest and the smallest of a record, which are NaN where one of its numbers is: no
    # copy of all numbers is made.
    largest, smallest = values.max(axis=-1, initial=0), values.min(axis=-1, initial=0)
    usable = largest.astype(np.float64) <= LARGEST_FEATURE
    return np.asarray(~(usable & (smallest.astype(np.float64) >= -LARGEST_FEATURE)))


def finite_rows(rows: ArrayLike) -> Any:
    """Private records with every unusable one (`unusable_rows`) set to zeros.

    It stands before every door: a record of NaN, infinity or 1e308 must neither stop a release nor
    change its form, because both would tell that there is such a record. Each record is treated by
    itself. What is no table of real numbers comes back as it is, and is refused later on by its
    type or shape, which are public.

    Parameters:
        rows: an array of numbers (..., n_features), or a data frame.

    Returns:
        A copy of the same type and precision.

    Examples:
        >>> finite_rows(np.array([[1.0, 2.0], [np.nan, 3.0], [1e308, 0.0]]))
        array([[1., 2.],
               [0., 0.],
               [0., 0.]])
    """
    values = np.asarray(rows)
    if values.ndim < 2 or values.dtype.kind not in "iuf":
        return rows
    usable = ~unusable_rows(values)[..., None]
    if hasattr(rows, "columns") and hasattr(rows, "where"):  # a data frame keeps its column names
        return rows.where(np.broadcast_to(usable, values.shape), 0)
    return np.where(usable, values, np.zeros((), values.dtype))


def clip_norm(
    x: ArrayLike, bound: float, *, order: Literal[1, 2] = 2, axis: int | tuple[int, ...] = -1
) -> NDArray[np.float64]:
    """Scale every vector along `axis` into the l1 or l2 ball of radius `bound`; those inside stay
    as they are.

    Examples:
        >>> clip_norm([[3.0, 4.0], [0.3, 0.4]], 1.0)
        array([[0.6, 0.8],
               [0.3, 0.4]])
    """
    if order not in (1, 2):
        raise InvalidParameter(f"order must be 1 or 2, got {order!r}.")
    array, limit = checks.finite_array("x", x), checks.positive("bound", bound)
    size = np.abs(array) if order == 1 else np.square(array)
    norm = size.sum(axis=axis, keepdims=True)
    norm = norm if order == 1 else np.sqrt(norm)
    return np.asarray(array * (limit / np.maximum(norm, limit)))

"""What the sites of a Flower app agree on, and how an update becomes a vector of the secure sum.

A site with n examples contributes w · (update / bound, 1), where w = n / max_examples. The sum's
last entry is the sum of the weights; the other entries divided by it are the weighted mean, and
nobody learns a single site's w.

With epsilon per record a site contributes (sum of its records' clipped gradients, count): the model
moves by minus `rate` times the mean gradient, and the noise of all sites together bounds what the
sums reveal about one record. With `totals` a site contributes any sum over its records, and the new
arrays are the total with noise.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.core.parsing import one_parser
from blindsight.federated.agreement import Agreement, agree
from blindsight.federated.sums import RoundSum, Settings
from blindsight.privacy import Guarantee
from blindsight.privacy.door import clip_norm

if TYPE_CHECKING:
    from flwr.app import Array

__all__ = ["Model", "SumPlan"]

_LARGEST_PLAN = 4096  # bytes
_LEAST_BITS = 12
_COUNT_WEIGHT = 0.2  # what a record adds to the count, in clips


@lru_cache(maxsize=1024)  # a model's arrays have the same headers in every round
def _npy_header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    file = io.BytesIO(head)
    np.lib.format.read_magic(file)
    with one_parser():
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    return shape, fortran, dtype


def _numbers(array: Array) -> NDArray[Any]:
    """Return the same as `array.numpy()`, but parse each header only once."""
    data = array.data
    if array.stype != "numpy.ndarray" or data[:8] != b"\x93NUMPY\1\0":
        with one_parser():
            return np.asarray(array.numpy())
    end = 10 + int.from_bytes(data[8:10], "little")
    shape, fortran, dtype = _npy_header(data[:end])
    if dtype.hasobject:
        raise InvalidData("an array must hold numbers, not Python objects.")
    flat = np.frombuffer(data, dtype, math.prod(shape), end)
    return flat.reshape(shape, order="F" if fortran else "C")


@lru_cache(maxsize=16)  # a model has the same layout in every round
def _entries(layout: str) -> tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]:
    """Return name, type and shape of each array."""
    return tuple((name, np.dtype(dtype), tuple(shape)) for name, dtype, shape in json.loads(layout))


def _flat(parts: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    return np.concatenate(parts, dtype=np.float64) if parts else np.zeros(0)


@dataclass(frozen=True)
class Model:
    """The arrays of a model as one vector of float64, with their names, types and shapes.

    Parameters:
        layout: JSON, a list of name, type and shape for each array, in order.
        vector: all arrays, flattened, one after another.
    """

    layout: str
    vector: NDArray[np.float64]

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Model:
        """Flatten named arrays.

        Raises:
            InvalidData: an array does not hold real numbers.
        """
        for name, array in arrays.items():
            if array.dtype.kind not in "fiu":
                raise InvalidData(
                    f"arrays must hold real numbers to be summed, {name!r} has {array.dtype}."
                )
        layout = json.dumps([[n, a.dtype.str, list(a.shape)] for n, a in arrays.items()])
        return cls(layout, _flat([array.ravel() for array in arrays.values()]))

    @classmethod
    def of_record(cls, record: Mapping[str, Array]) -> Model:
        """Flatten the arrays of one of Flower's ArrayRecords."""
        return cls.of({name: _numbers(array) for name, array in record.items()})

    @property
    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Names and shapes of the arrays, whatever their types."""
        return [(name, shape) for name, _, shape in _entries(self.layout)]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays with their types and shapes; whole-number types are rounded."""
        arrays: dict[str, NDArray[Any]] = {}
        start = 0
        for name, dtype, shape in _entries(self.layout):
            end = start + math.prod(shape)
            part = self.vector[start:end]
            rounded = np.rint(part) if dtype.kind in "iu" else part
            arrays[name], start = rounded.astype(dtype).reshape(shape), end
        return arrays

    def moved(self, change: NDArray[np.float64]) -> Model:
        """Return the model after a change, rounded to the arrays' types, as it will be sent."""
        return Model.of(Model(self.layout, self.vector + change).arrays())

    def dump(self) -> bytes:
        """Return names, types and shapes, a zero byte, and the numbers in the arrays' own types."""
        numbers = (array.tobytes() for array in self.arrays().values())
        return b"".join([self.layout.encode(), b"\0", *numbers])

    @classmethod
    def load(cls, data: bytes, digest: bytes) -> Model:
        """Read the model with this digest, as `dump` wrote it.

        Raises:
            HostileFile: the bytes are of another model, or damaged.
        """
        if hashlib.sha256(data).digest() != digest:
            raise HostileFile("a saved model's checksum does not hold: the file is damaged.")
        at = data.index(b"\0")
        layout, parts = data[:at].decode(), []
        for _, dtype, shape in _entries(layout):
            parts.append(np.frombuffer(data, dtype, math.prod(shape), at + 1))
            at += parts[-1].nbytes
        return cls(layout, _flat(parts))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the result of `dump`; rounds of the sum are bound to it."""
        return hashlib.sha256(self.dump()).digest()


@dataclass(frozen=True, kw_only=True)
class SumPlan:
    """What every site of a Flower app agrees on; a digest of it is part of the roster.

    Parameters:
        weights: the total number of numbers in the model's arrays.
        max_examples: the number of examples with weight 1. A site with more examples also has
            weight 1. If it is far too large, the updates of small sites lose resolution.
        bound: the largest change of one number in a round; larger changes are cut off. Changes are
            sent in steps of about bound / 2^(bits-1) / (n / max_examples).
        clip: the largest l2 norm of a site's update; longer updates are scaled down, and every
            party refuses a sum that is longer than a sum of clipped updates can be.
        follows_mean: the model moves by exactly the mean of each round, as in FedAvg. Sites then
            compute the model themselves and refuse rounds on any other. False for strategies that
            move the model in another way, such as FedAdam.
        simulation: all keys were made on one machine, so nobody is protected from it.
        epsilon: privacy budget over `rounds` rounds; None: the exact sums are shown. Needs `clip`.
        delta: with epsilon.
        unit: "record": apps return the sums of their records' gradients, each clipped to norm
            `clip` (see `record_gradients`), and the model moves by minus `rate` times their mean.
            "site": apps return arrays as without noise; needs many sites.
        rounds: the largest number of rounds in which a site takes part, with epsilon.
        rate: the step size, with unit "record".
        totals: with unit "record": apps return any sums over their records to which one record adds
            a vector of norm at most `clip`, and the new arrays are the noisy total of all sites.
            Feature statistics are summed in this way, in one round.

    Examples:
        >>> plan = SumPlan(weights=3, max_examples=100)
        >>> plan.contribution(np.array([0.5, -0.5, 4.0]), examples=50).tolist()
        [0.25, -0.25, 0.5, 0.5]
    """

    weights: int
    max_examples: int
    bound: float = 1.0
    clip: float | None = None
    follows_mean: bool = True
    simulation: bool = False
    epsilon: float | None = None
    delta: float = 1e-5
    unit: str = "record"
    rounds: int = 1
    rate: float = 1.0
    totals: bool = False

    def __post_init__(self) -> None:
        checks.whole("weights", self.weights)
        checks.whole("max_examples", self.max_examples)
        checks.positive("bound", self.bound)
        if self.clip is not None:
            checks.positive("clip", self.clip)
        checks.one_of("unit", self.unit, ("record", "site"))
        checks.whole("rounds", self.rounds)
        checks.positive("rate", self.rate)
        if self.epsilon is not None:
            checks.positive("epsilon", self.epsilon)
            if self.clip is None:
                raise InvalidParameter("epsilon needs clip: the largest norm of a gradient.")
        for name in ("follows_mean", "simulation", "totals"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidParameter(f"{name} must be True or False.")
        if self.totals and not self.per_record:
            raise InvalidParameter("totals need epsilon= with unit='record'.")

    def settings(self, users: int, **options: Any) -> Settings:
        """Return the settings of the secure sum.

        Parameters:
            users: the number of sites that contribute updates.
            options: further keywords of `Settings`, for example `holders`, `bits` or `colluders`;
                not `groups`, because a Flower round is one sum.
        """
        if options.get("groups", 1) != 1:
            raise InvalidParameter("groups are not possible in a Flower app: leave groups out.")
        clip = None if self.clip is None else float(np.hypot(self.clip / self.bound, 1.0))
        if self.epsilon is not None and self.clip is not None:
            if self.per_record:
                clip = self.clip * (1.0 if self.totals else float(np.hypot(1.0, _COUNT_WEIGHT)))
            agreed = agree(
                dimension=self.weights + (not self.totals),
                users=users,
                rounds=self.rounds,
                epsilon=self.epsilon,
                delta=self.delta,
                clip=clip,
                records=self.max_examples if self.per_record else None,
                **options,
            ).settings
            assert isinstance(agreed, Settings)  # noqa: S101  (not the paper's protocol)
            return agreed
        options.setdefault("bits", max(_LEAST_BITS, 16 - int(math.log2(max(users, 4) / 4) / 2)))
        return Settings(dimension=self.weights + 1, users=users, bound=1.0, clip=clip, **options)

    @property
    def per_record(self) -> bool:
        """Whether apps return sums of records' clipped gradients."""
        return self.epsilon is not None and self.unit == "record"

    def guarantee(self, settings: Settings) -> Guarantee:
        """Return the guarantee over all rounds."""
        return Agreement(settings).guarantee(self.rounds)

    def contribution(
        self, update: NDArray[np.float64], *, examples: int | float
    ) -> NDArray[np.float64]:
        """Return a site's vector for the sum: its clipped update and 1, weighted by its examples.

        With epsilon per record the update is a sum of records' clipped gradients, and the last
        entry is their number. An update with NaN or infinity counts as zero, with zero examples.
        """
        if update.shape != (self.weights,):
            raise InvalidData(f"{self.weights} weights were agreed on, got {update.size}.")
        if not np.isfinite(update).all() or not np.isfinite(examples):
            return np.zeros(self.weights + (not self.totals))
        if self.totals:
            return update
        if self.per_record and self.clip is not None:
            count = max(float(examples), 0.0)
            return np.append(update, count * _COUNT_WEIGHT * self.clip)
        clipped = update if self.clip is None else clip_norm(update[None], self.clip)[0]
        vector = np.empty(self.weights + 1)
        np.clip(clipped, -self.bound, self.bound, out=vector[:-1])
        vector[-1] = self.bound
        vector /= self.bound
        vector *= min(max(float(examples) / self.max_examples, 0.0), 1.0)
        return vector

    def mean(self, total: RoundSum, settings: Settings) -> NDArray[np.float64]:
        """Return the change of the model: the weighted mean of the updates in a sum.

        It is zero if the sum has no weight. With epsilon per record it is minus `rate` times the
        mean gradient, which is scaled down to the clip if noise makes it longer.
        """
        values = settings.code.decode(total.values)
        if self.per_record and self.clip is not None:
            count = max(float(values[-1]) / (_COUNT_WEIGHT * self.clip), 1.0)
            gradient = values[:-1] / count
            longest = max(float(np.linalg.norm(gradient)), self.clip)
            return np.asarray(-self.rate * self.clip / longest * gradient, dtype=np.float64)
        if values[-1] <= 0:
            return np.zeros(self.weights)
        return np.asarray(values[:-1] / values[-1] * self.bound, dtype=np.float64)

    def following(self, model: Model, total: RoundSum, settings: Settings) -> Model:
        """Return the model after a round: moved by the mean, or with `totals` the total itself."""
        if self.totals:
            values = settings.code.decode(total.values)
            return Model.of(Model(model.layout, np.asarray(values, np.float64)).arrays())
        return model.moved(self.mean(total, settings))

    def encode(self) -> bytes:
        """The plan as bytes; public, part of the roster file."""
        fields = {name: value for name, value in asdict(self).items() if name != "totals" or value}
        return json.dumps(fields, sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> SumPlan:
        """Read an untrusted plan."""
        try:
            if len(data) > _LARGEST_PLAN:
                raise ValueError("size")
            plan = cls(**json.loads(data))
        except (ValueError, TypeError, RecursionError) as error:
            raise HostileFile(f"this is not a plan of a secure sum in Flower: {error}") from error
        return plan

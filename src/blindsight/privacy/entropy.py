"""Where randomness comes from, and whether it is a protection or a simulation.

A `Source` hands out streams of random numbers and says what they are made of:

- `SystemSource`: for exact samplers every bit from the operating system; for bulk noise and batches
  AES in counter mode, its key and its counter 256 bits from the operating system (numpy's own
  generators can be run backwards from enough of their output, and torch's takes a seed of 32 bits:
  neither ever protects anyone here);
- `SeededSource`: a fixed seed: reproducible, so a simulation, and the guarantee says so;
- a vault's `RecordSource`: AES keyed by a secret and a record's name: the same noise for the same
  record, whenever it is asked for;
- a vault's `ReleaseSource`: AES keyed by a secret, a release and the value that the noise is added
  to: the same training again gives the same bytes.

`training_rng` is for what protects nobody: initial weights, splits, public rotations.

A vault hands out the last two; see `blindsight.privacy.vault` for why releasing the same value with
the same noise again tells nothing new.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import core_module
from blindsight.core.errors import InvalidData, InvalidParameter

__all__ = [
    "EntropyName",
    "RandomState",
    "RecordSource",
    "RecordStream",
    "ReleaseSource",
    "Rng",
    "SeededSource",
    "Source",
    "SystemEntropy",
    "SystemSource",
    "aes_generator",
    "keyed",
    "part_state",
    "source_of",
    "training_rng",
    "words",
]

RandomState: TypeAlias = (
    int | np.random.Generator | np.random.SeedSequence | np.random.RandomState | None
)
EntropyName = Literal["system", "keyed", "seed"]


class Rng(Protocol):
    """The methods of a random generator that mechanisms use; numpy's `Generator` and
    `SystemEntropy` have them.
    """

    def integers(
        self, low: Any, high: Any = None, size: Any = None, dtype: Any = np.int64
    ) -> Any: ...

    def random(self, size: Any = None) -> Any: ...

    def bytes(self, length: int) -> bytes: ...


class SystemEntropy:
    """Random numbers of the operating system (`os.urandom`), with the few methods of a numpy
    generator that we use.
    """

    def bytes(self, length: int) -> bytes:
        return os.urandom(length)

    def integers(self, low: Any, high: Any = None, size: Any = None, dtype: Any = np.int64) -> Any:
        """Exactly uniform integers in [low, high), as numpy has them, for plain numbers as
        bounds.
        """
        if high is None:
            low, high = 0, low
        low, span = int(low), int(high) - int(low)
        if not 1 <= span <= 1 << 64:
            raise InvalidParameter(f"high must be above low, got {low} and {high}.")
        count = 1 if size is None else int(np.prod(size))
        drawn = words(self, count)
        # Values past the largest multiple of the span would favour small remainders: draw them
        # again. A power of two leaves none past it.
        last = np.uint64((1 << 64) // span * span - 1)
        todo = np.flatnonzero(drawn > last)
        while todo.size:
            drawn[todo] = words(self, todo.size)
            todo = todo[drawn[todo] > last]
        if span < 1 << 64:
            drawn %= np.uint64(span)
        result = (drawn + np.uint64(low % (1 << 64))).astype(dtype)
        return result[0] if size is None else result.reshape(size)

    def random(self, size: Any = None) -> Any:
        """Uniform floats in [0, 1) with 53 random bits each."""
        count = 1 if size is None else int(np.prod(size))
        values = (words(self, count) >> np.uint64(11)) * 2.0**-53
        return float(values[0]) if size is None else values.reshape(size)


def words(rng: Rng, count: int) -> NDArray[np.uint64]:
    """`count` uniform 64-bit words, the fastest way each source has."""
    if isinstance(rng, np.random.Generator):
        return rng.integers(0, 2**64, size=count, dtype=np.uint64)
    return np.frombuffer(bytearray(rng.bytes(8 * count)), dtype=np.uint64)


def aes_generator(secret: bytes | None = None) -> np.random.Generator:
    """A numpy generator on AES-128 in counter mode; key and first counter are the 32 secret
    bytes.
    """
    AESCounter = core_module("randomgen").AESCounter

    secret = os.urandom(32) if secret is None else secret
    if len(secret) != 32:
        raise InvalidParameter(
            f"the secret of an AES generator must have 32 bytes, got {len(secret)}."
        )
    halves = np.frombuffer(secret, dtype="<u8").astype(np.uint64)
    return np.random.Generator(AESCounter(key=halves[:2], counter=halves[2:]))


class Source(Protocol):
    """Hands out random streams, each under a name of its own."""

    @property
    def name(self) -> EntropyName: ...

    def stream(self, label: str, *, exact: bool) -> Any: ...


class SystemSource:
    """The operating system's entropy: directly for exact samplers, as an AES key for bulk noise."""

    name: EntropyName = "system"

    def stream(self, label: str, *, exact: bool) -> Any:
        """A fresh stream, whatever the label."""
        return SystemEntropy() if exact else aes_generator()


class SeededSource:
    """Streams that depend on a seed and their label only: for simulations."""

    name: EntropyName = "seed"

    def __init__(self, seed: RandomState) -> None:
        rng, _ = training_rng(seed)
        self._base = int(rng.integers(0, 1 << 62))

    def stream(self, label: str, *, exact: bool) -> Any:
        """The stream of this label: the same in every run."""
        digest = hashlib.sha256(label.encode()).digest()[:16]
        return np.random.default_rng([self._base, int.from_bytes(digest, "big")])


def source_of(random_state: RandomState | Source) -> Source:
    """Return the source of a random state: the operating system for None, a simulation for a seed
    or generator, and a source itself.
    """
    if random_state is None:
        return SystemSource()
    if isinstance(random_state, (SystemSource, SeededSource)):
        return random_state
    if hasattr(random_state, "stream") and hasattr(random_state, "name"):
        return random_state
    return SeededSource(random_state)


def training_rng(random_state: RandomState) -> tuple[np.random.Generator, bool]:
    """A numpy generator for what protects nobody, and whether a seed or generator was handed in."""
    if random_state is None:
        return np.random.default_rng(), False
    seed = getattr(random_state, "public_seed", None)  # a vault's: the same for the same release
    if seed is not None:
        return np.random.default_rng(seed()), False
    if isinstance(random_state, np.random.RandomState):
        return np.random.Generator(random_state._bit_generator), True
    if isinstance(random_state, (bool, np.bool_)) or not isinstance(
        random_state, (int, np.integer, np.random.Generator, np.random.SeedSequence)
    ):
        raise InvalidParameter(
            "random_state must be None, a whole number, a Generator or a SeedSequence, got "
            f"{random_state!r}."
        )
    if isinstance(random_state, (int, np.integer)) and random_state < 0:
        raise InvalidParameter(f"random_state must be at least 0, got {random_state}.")
    return np.random.default_rng(random_state), True


def part_state(random_state: RandomState, part: int) -> RandomState:
    """The random state of one part of a larger job: of a block, or of an image by its name.

    With a seed each part has numbers of its own, the same in whatever order and on whatever machine
    the parts are made. None stays None (every part asks the operating system), and a generator
    moves on by itself.
    """
    if random_state is None or isinstance(
        random_state, (np.random.Generator, np.random.RandomState)
    ):
        return random_state
    training_rng(random_state)  # refuses what is no seed
    if isinstance(random_state, np.random.SeedSequence):
        return np.random.SeedSequence(
            random_state.entropy, spawn_key=(*random_state.spawn_key, part)
        )
    return np.random.SeedSequence(int(random_state), spawn_key=(part,))


class RecordStream(SystemEntropy):
    """Random numbers of one record for one mechanism: AES-256 in counter mode under a key of their
    own.

    The methods are those of the operating system's numbers, defined by us on the stream's bytes:
    numpy may change how its generators use theirs from one release to the next, and permanent noise
    must not change with it.
    """

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self._cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def bytes(self, length: int) -> bytes:
        """The next bytes of the stream."""
        return self._cipher.update(bytes(length))

    def __repr__(self) -> str:
        return "RecordStream(a secret key)"


class RecordSource:
    """The noise of some records, for whoever draws it: it travels to workers without the vault's
    key.

    A source for the door (`Source`): a stream's label starts with its record's id.
    """

    name: EntropyName = "keyed"

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = dict(keys)

    def stream(self, label: str, *, exact: bool = True) -> RecordStream:
        """The stream of a label, which is a record's id, a slash, and the mechanism."""
        record, _, mechanism = label.partition("/")
        if record not in self._keys or not mechanism:
            raise InvalidParameter(
                "a label must be a record's id of this source, a slash, and the mechanism."
            )
        return RecordStream(keyed(self._keys[record], "noise", mechanism.encode()))

    def receipt(self, names: Sequence[str], values: NDArray[Any], mechanism: str) -> str:
        """Return the ledger's key of one release, which depends on the records, their values and
        the mechanism.

        It is made with the records' own keys, so that a reader of the ledger cannot try out values.
        """
        if len(names) != len(values) or not self._keys.keys() >= set(names):
            raise InvalidParameter(
                "names must be ids of this source's records, one for each value."
            )
        seal = hashlib.sha256(mechanism.encode())
        for name, value in zip(names, np.ascontiguousarray(values), strict=True):
            seal.update(keyed(self._keys[name], "receipt", name.encode(), value.tobytes()))
        return seal.hexdigest()[:40]

    def __repr__(self) -> str:
        return f"RecordSource({len(self._keys)} records)"


class ReleaseSource:
    """The noise of one release as a whole: a trained model, a codebook, a table of sums.

    A source for the door, passed to an estimator as `random_state`. The noise of each value is a
    pseudo-random function of the vault's key, the release, the value's place in the plan and the
    digest of the value itself: the same training again gives the same bytes, and no noise is ever
    added to two different values. The vault keeps a digest of every value and of what was handed
    out for it. A second run that computes another value (another machine, another library) is
    refused before anything leaves: it would be a second release under one charge.
    """

    name: EntropyName = "keyed"

    def __init__(self, key: bytes, note: Callable[[str, str], str]) -> None:
        self._key, self._note = key, note

    def stream(self, label: str, *, exact: bool = True) -> Any:
        """The stream of a label that depends on no value: which rows are in a batch."""
        return _stream(keyed(self._key, "stream", label.encode()), exact=exact)

    def value_stream(self, label: str, value: NDArray[Any], *, exact: bool) -> Any:
        """The stream of the noise for this value at this place of the plan."""
        key = keyed(self._key, "value", label.encode(), _array_bytes(value))
        return _stream(key, exact=exact)

    def keep(self, label: str, value: NDArray[Any], released: NDArray[Any]) -> None:
        """Record a value before it is released; refuse it if another one was released before."""
        parts = (label.encode(), _array_bytes(value), _array_bytes(released))
        digest = keyed(self._key, "output", *parts).hex()[:32]
        if self._note(label, digest) != digest:
            raise InvalidData(
                f"this run computes another value for {label!r} than the run that made this "
                "release, so it would be a second release under one charge; nothing was released. "
                "Use the result of the first run, or charge this as a new release "
                "(Vault.start_anew)."
            )

    def public_seed(self) -> int:
        """A seed for randomness that protects nobody (splits, initial weights)."""
        return int.from_bytes(keyed(self._key, "seed")[:8], "big")

    def __deepcopy__(self, _memo: Any) -> ReleaseSource:
        return self

    def __repr__(self) -> str:
        return "ReleaseSource(a secret key)"


def keyed(key: bytes, purpose: str, *parts: bytes) -> bytes:
    """Return the HMAC-SHA-256 of a purpose and parts, each with its length, so that different parts
    never give the same message.
    """
    message = b"".join(len(part).to_bytes(8, "big") + part for part in (purpose.encode(), *parts))
    return hmac.digest(key, message, "sha256")


def _stream(key: bytes, *, exact: bool) -> Any:
    return RecordStream(key) if exact else aes_generator(key)


def _array_bytes(values: NDArray[Any]) -> bytes:
    array = np.ascontiguousarray(values)
    return f"{array.dtype.str} {array.shape} ".encode() + array.tobytes()

"""Noise that is a function of a secret key: the same noise whenever the same thing is released.

A vault hands out these sources; see `blindsight.privacy.vault` for why releasing the same value
with the same noise again tells nothing new.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy.entropy import EntropyName, SystemEntropy, aes_generator

__all__ = ["RecordSource", "RecordStream", "ReleaseSource", "keyed"]


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

    def receipt(self, names: Sequence[str], values: NDArray[Any], law: str) -> str:
        """The ledger's key of one release: the same records with the same values under the same
        law, and no other.

        Made with the records' own keys, so that whoever reads the ledger cannot try out values.
        """
        if len(names) != len(values) or not self._keys.keys() >= set(names):
            raise InvalidParameter(
                "names must be ids of this source's records, one for each value."
            )
        seal = hashlib.sha256(law.encode())
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
        """Note what is about to leave; refuse it where something else left before."""
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
    """HMAC-SHA-256 over a purpose and parts, each with its length: no two ways to read one
    message.
    """
    message = b"".join(len(part).to_bytes(8, "big") + part for part in (purpose.encode(), *parts))
    return hmac.digest(key, message, "sha256")


def _stream(key: bytes, *, exact: bool) -> Any:
    return RecordStream(key) if exact else aes_generator(key)


def _array_bytes(values: NDArray[Any]) -> bytes:
    array = np.ascontiguousarray(values)
    return f"{array.dtype.str} {array.shape} ".encode() + array.tobytes()

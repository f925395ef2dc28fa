"""The cryptosystem's rows: against python-paillier as it comes, in one run, in turns.

Table 2's times fit shards x M encryptions with M = ceil(0.1 D NC) = 20,685 and 10, 3, 1 shards: that count is what
python-paillier is charged for, extrapolated from a sample of at least 200 of its encryptions. Ours is the whole of what
a user does: fixed point, packing, tags, encryption, both permutations, serialising and signing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row
from blindsight.core.checks import optional_module
from blindsight.federated import keys
from blindsight.federated.messages import AGGREGATOR, Header, Kind, Message
from blindsight.federated.packing import Packing
from blindsight.federated.paillier import PrivateKey
from blindsight.federated.protocol import Settings, User, enrol
from blindsight.federated.protocol.enrolment import Setup
from blindsight.federated.randomisers import RandomiserPool
from blindsight.federated.threshold import deal

__all__ = ["DIMENSION", "PAPER_SECONDS", "SHARDS", "SPARSITIES", "crypto_rows", "table2_update"]

DIMENSION = 206_848  # 2,048 features times 101 classes, as in Table 2
SPARSITIES = {"0001": 0.0001, "791": 0.791, "956": 0.956}
SHARDS = {"0001": 10, "791": 3, "956": 1}
PAPER_SECONDS = {"0001": 620.0, "791": 186.0, "956": 62.0}
CAPACITY = 20_685  # M
_SAMPLE = 200


def table2_update(sparsity: float, *, seed: int = 0) -> NDArray[np.float64]:
    """A vector of Table 2's length and sparsity."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(DIMENSION) < sparsity, 0.0, rng.uniform(-1, 1, DIMENSION))


@dataclass
class _Times:
    """Wall and CPU seconds of repeated runs."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def run(self, work: Callable[[], Any], *, times: int = 1) -> None:
        """Time `work`, which does something `times` over."""
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        self.wall.append((time.perf_counter() - wall) / times)
        self.cpu.append((time.process_time() - cpu) / times)

    @property
    def median_wall(self) -> float:
        return statistics.median(self.wall)

    @property
    def median_cpu(self) -> float:
        return statistics.median(self.cpu)


class _Contributor:
    """A user of Table 2's federation who contributes again and again."""

    def __init__(self, setup: Setup, workers: int) -> None:
        self.user = User(setup.users[0], workers=workers)
        self._aggregator = setup.aggregator
        self._round = 0

    def prepare(self) -> None:
        """Open the next round; not part of what is timed."""
        self._round += 1
        enrolment = self._aggregator
        header = Header(
            kind=Kind.OPEN,
            key_id=enrolment.public.key_id,
            round=self._round,
            model=bytes(32),
            sender=AGGREGATOR,
        )
        self.user.receive(Message.make(header, enrolment.settings.digest, enrolment.identity).encode())

    def contribute(self, update: NDArray[np.float64]) -> int:
        """One contribution; its size in bytes."""
        return sum(len(message.data) for message in self.user.contribute(update))


def crypto_rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None
) -> Iterator[Row]:
    """The rows that need no data set: speed and size of encryption, decryption and shared keys."""
    stages = (
        [_one_value, _table2, _sizes, _decryption] if quick else [_one_value, _table2, _sizes, _decryption, _shared]
    )
    key = keys.generate(2048)
    for done, stage in enumerate(stages, start=1):
        yield from stage(key, quick=quick, seed=seed)
        if progress is not None:
            progress(done, len(stages))


def _one_value(key: PrivateKey, *, quick: bool, seed: int) -> Iterator[Row]:
    """One value at a time, one core, CPU seconds."""
    phe = optional_module("phe", extra="bench")
    code = Settings(dimension=1, users=5).code
    for bits in (2048,) if quick else (2048, 3072):
        public = key.public if bits == 2048 else keys.generate(bits).public
        theirs = phe.generate_paillier_keypair(n_length=bits)[0]
        values = np.random.default_rng(seed).uniform(-1, 1, 20)
        _ = public.fixed_base

        def ours(public: Any = public, values: NDArray[np.float64] = values) -> None:
            for value in values:
                public.encrypt(int(code.encode([value])[0]) % int(public.n))

        def peer(theirs: Any = theirs, values: NDArray[np.float64] = values) -> None:
            for value in values:
                theirs.encrypt(float(value))

        mine, other = _Times(), _Times()
        for _ in range(_SAMPLE // len(values)):
            other.run(peer, times=len(values))
            mine.run(ours, times=len(values))
        yield Row(
            id=f"federated.encrypt_vs_phe_{bits}",
            value=other.median_cpu / mine.median_cpu,
            unit="times",
            peer="python-paillier",
            seed=seed,
            seconds=mine.median_cpu,
            note=f"one value, one core, CPU seconds; python-paillier {other.median_cpu * 1e3:.2f} ms, "
            f"sample of {_SAMPLE}",
        )


def _table2(key: PrivateKey, *, quick: bool, seed: int) -> Iterator[Row]:
    """Table 2's vector at its three sparsities: both cores by wall, one core by CPU, and with randomisers ready."""
    phe = optional_module("phe", extra="bench")
    theirs = phe.generate_paillier_keypair(n_length=key.public.bits)[0]
    values = np.random.default_rng(seed).uniform(-1, 1, _SAMPLE)
    settings = Settings(dimension=DIMENSION, users=5)
    setup = enrol(settings, key)
    updates = {name: table2_update(sparsity, seed=seed) for name, sparsity in SPARSITIES.items()}
    both, one, online = _Contributor(setup, 2), _Contributor(setup, 1), _Contributor(setup, 2)
    online.user.pool = RandomiserPool(key.public)
    blocks = settings.places(key.public)
    _ = key.public.fixed_base
    peer = _Times()
    wall = {name: _Times() for name in SPARSITIES}
    cpu = {name: _Times() for name in SPARSITIES}
    ready = _Times()
    repeats = 1 if quick else 5
    part = _SAMPLE // 10

    def phe_part(start: int) -> None:
        for value in values[start : start + part]:
            theirs.encrypt(float(value))

    turns = [(name, r) for r in range(repeats) for name in SPARSITIES]
    for turn, (name, _) in enumerate(turns):
        # The sample is spread over the whole run, so that both see the same machine.
        for chunk in range(10 * turn // len(turns), 10 * (turn + 1) // len(turns)):
            peer.run(partial(phe_part, chunk * part), times=part)
        for contributor, times in ((both, wall[name]), (one, cpu[name])):
            contributor.prepare()
            times.run(partial(contributor.contribute, updates[name]))
    for _ in range(repeats):
        online.user.pool.fill(blocks)
        online.prepare()
        ready.run(lambda: online.contribute(updates["0001"]))
    for name, shards in SHARDS.items():
        encryptions = shards * CAPACITY
        yield Row(
            id=f"federated.table2_vs_phe_{name}",
            value=encryptions * peer.median_wall / wall[name].median_wall,
            unit="times",
            peer="python-paillier",
            paper=PAPER_SECONDS[name],
            seed=seed,
            seconds=wall[name].median_wall,
            note=f"wall, both cores; python-paillier as it comes: {encryptions:,} encryptions of "
            f"{peer.median_wall * 1e3:.2f} ms, from a sample of {_SAMPLE}; paper: seconds, 1024 bits",
        )
        yield Row(
            id=f"federated.table2_cpu_vs_phe_{name}",
            value=encryptions * peer.median_cpu / cpu[name].median_cpu,
            unit="times",
            peer="python-paillier",
            seed=seed,
            seconds=cpu[name].median_cpu,
            note="CPU seconds, one core",
        )
    yield Row(
        id="federated.table2_online_vs_phe_0001",
        value=SHARDS["0001"] * CAPACITY * peer.median_wall / ready.median_wall,
        unit="times",
        peer="python-paillier",
        seed=seed,
        seconds=ready.median_wall,
        note=f"wall, with {blocks:,} randomisers made ahead",
    )


def _sizes(key: PrivateKey, *, quick: bool, seed: int) -> Iterator[Row]:
    """Bytes a weight in a whole contribution, header and signature included."""
    settings = Settings(dimension=DIMENSION, users=5)
    size = settings.contribution_bytes(key.public, settings.places(key.public))
    yield Row(
        id="federated.bytes_per_weight",
        value=size / DIMENSION,
        unit="bytes",
        seed=seed,
        note=f"N = 5, 16-bit values, contributors counted per coordinate; {size:,} bytes in all",
    )
    width = (key.public.bits + 7) // 8
    for s, users, count in ((3, 5, "coordinate"), (1, 128, "block"), (3, 128, "block"), (1, 128, "coordinate")):
        packing = Packing(plaintext_bits=s * key.public.bits - 1, value_bits=16, users=users, count=count)  # type: ignore[arg-type]
        total = packing.blocks(DIMENSION) * (s + 1) * width + 145
        yield Row(
            id=f"federated.bytes_per_weight_s{s}_n{users}_{count}",
            value=total / DIMENSION,
            unit="bytes",
            seed=seed,
            note=f"Damgård-Jurik s = {s}, N <= {users}, contributors counted per {count}",
        )


def _decryption(key: PrivateKey, *, quick: bool, seed: int) -> Iterator[Row]:
    """Opening the sum: all weights one by one against packed blocks, CPU seconds."""
    phe = optional_module("phe", extra="bench")
    public, private = phe.generate_paillier_keypair(n_length=key.public.bits)
    theirs = [public.encrypt(float(x)) for x in np.random.default_rng(seed).uniform(-1, 1, 20)]
    blocks = Settings(dimension=DIMENSION, users=5).places(key.public)
    ours = key.public.encrypt_many(range(20), workers=1)
    mine, other = _Times(), _Times()
    for _ in range(5 if quick else 10):
        other.run(lambda: [private.decrypt(c) for c in theirs], times=len(theirs))
        mine.run(lambda: key.decrypt_many(ours, workers=1), times=len(ours))
    yield Row(
        id="federated.decrypt_vs_phe",
        value=DIMENSION * other.median_cpu / (blocks * mine.median_cpu),
        unit="times",
        peer="python-paillier",
        seed=seed,
        seconds=blocks * mine.median_cpu,
        note=f"CPU, one core, extrapolated: {DIMENSION:,} values against {blocks:,} blocks",
    )


def _shared(key: PrivateKey, *, quick: bool, seed: int) -> Iterator[Row]:
    """What a key holder spends on its part of Table 2's sum, 2 of 3 needed."""
    share = deal(key, needed=2, holders=3)[0]
    ciphertexts = key.public.encrypt_many(range(40))
    times = _Times()
    for _ in range(3):
        times.run(lambda: share.partial(ciphertexts, workers=2), times=len(ciphertexts))
    blocks = Settings(dimension=DIMENSION, users=5).places(key.public)
    yield Row(
        id="federated.holder_seconds",
        value=blocks * times.median_wall,
        unit="seconds",
        seed=seed,
        seconds=blocks * times.median_wall,
        note=f"wall, both cores, extrapolated from {len(ciphertexts)} of {blocks:,} blocks",
    )

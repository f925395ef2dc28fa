"""The cryptosystem's rows: against python-paillier as it comes, in one run, in turns.

Table 2's times fit shards x M encryptions with M = ceil(0.1 D NC) = 20,685 and 10, 3, 1 shards:
that count is what python-paillier is charged for, extrapolated from a sample of at least 200 of its
encryptions. Ours is the whole of what a user does: fixed point, tag, pad, shares of the key sealed
to every holder, serialising and signing; it does not depend on the sparsity.
"""

from __future__ import annotations

import secrets
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gmpy2
import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row
from blindsight.core.checks import optional_module
from blindsight.federated.paper import paillier
from blindsight.federated.paper.paillier import PrivateKey
from blindsight.federated.sums import Aggregator, Enrolment, KeyHolder, Role, Settings, User, enrol
from blindsight.federated.sums.messages import contribution_bytes

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
    """A user of a federation who contributes again and again."""

    def __init__(self, settings: Settings) -> None:
        parties = enrol(settings)
        self.user = User(parties[Role.USER][0])
        self._aggregator = Aggregator(parties[Role.AGGREGATOR][0])

    def prepare(self) -> None:
        """Open the next round; not part of what is timed."""
        number = self._aggregator.round + 1
        [opening] = self._aggregator.open_round(number, bytes(32), users=[1])
        self.user.receive(opening.data)

    def contribute(self, update: NDArray[np.float64]) -> int:
        """One contribution; its size in bytes."""
        return sum(len(message.data) for message in self.user.contribute(update))


def crypto_rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None
) -> Iterator[Row]:
    """The rows that need no data set: speed and size of what users and key holders do."""
    stages = [_one_value, _table2, _paper_times, _sizes, _openers]
    key = paillier.generate(2048)
    for done, stage in enumerate(stages, start=1):
        yield from stage(key, quick=quick, seed=seed)
        if progress is not None:
            progress(done, len(stages))


def _one_value(key: PrivateKey, *, quick: bool, seed: int) -> Iterator[Row]:
    """One value at a time, one core, CPU seconds."""
    phe = optional_module("phe", extra="bench")
    code = Settings(dimension=1, users=5).code
    for bits in (2048,) if quick else (2048, 3072):
        public = key.public if bits == 2048 else paillier.generate(bits).public
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
            note=f"one value, one core, CPU seconds; python-paillier {other.median_cpu * 1e3:.2f} "
            "ms, "
            f"sample of {_SAMPLE}",
        )


def _table2(key: PrivateKey, *, quick: bool, seed: int) -> Iterator[Row]:
    """Table 2's vector at its three sparsities, by wall and by CPU."""
    phe = optional_module("phe", extra="bench")
    theirs = phe.generate_paillier_keypair(n_length=key.public.bits)[0]
    values = np.random.default_rng(seed).uniform(-1, 1, _SAMPLE)
    contributor = _Contributor(Settings(dimension=DIMENSION, users=5))
    updates = {name: table2_update(sparsity, seed=seed) for name, sparsity in SPARSITIES.items()}
    contributor.prepare()
    contributor.contribute(updates["956"])  # tables and compiled code, once
    peer, ours = _Times(), {name: _Times() for name in SPARSITIES}
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
        contributor.prepare()
        ours[name].run(partial(contributor.contribute, updates[name]))
    for name, shards in SHARDS.items():
        encryptions = shards * CAPACITY
        yield Row(
            id=f"federated.table2_vs_phe_{name}",
            value=encryptions * peer.median_wall / ours[name].median_wall,
            unit="times",
            peer="python-paillier",
            paper=PAPER_SECONDS[name],
            seed=seed,
            seconds=ours[name].median_wall,
            note=f"wall, one core; python-paillier as it comes: {encryptions:,} encryptions of "
            f"{peer.median_wall * 1e3:.2f} ms, from a sample of {_SAMPLE}; paper: seconds, 1024 "
            "bits",
        )
        yield Row(
            id=f"federated.table2_cpu_vs_phe_{name}",
            value=encryptions * peer.median_cpu / ours[name].median_cpu,
            unit="times",
            peer="python-paillier",
            seed=seed,
            seconds=ours[name].median_cpu,
            note="CPU seconds, one core",
        )


def _paper_times(key: PrivateKey, *, quick: bool, seed: int) -> Iterator[Row]:
    """Table 2's own column: seconds to encrypt shards x M values one by one, at the paper's 1024
    bits and at 2048.
    """
    phe = optional_module("phe", extra="bench")
    sample = max(5, _SAMPLE // 10) if quick else _SAMPLE
    for bits in (1024, 2048):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # 1024 bits is for the paper's times and nothing else
            public = key.public if bits == key.public.bits else paillier.generate(bits).public
        theirs = phe.generate_paillier_keypair(n_length=bits)[0]
        _ = public.fixed_base
        ours, peer = _Times(), _Times()
        for _ in range(5):
            ours.run(partial(public.encrypt_many, range(sample // 5)), times=sample // 5)
            peer.run(partial(_each, theirs.encrypt, sample // 5), times=sample // 5)
        for name, shards in SHARDS.items():
            yield Row(
                id=f"federated.table2_seconds_{name}_{bits}",
                value=shards * CAPACITY * ours.median_cpu,
                unit="CPU seconds",
                peer="python-paillier",
                paper=PAPER_SECONDS[name] if bits == 1024 else None,
                seed=seed,
                seconds=shards * CAPACITY * ours.median_cpu,
                note=f"paper mode, {shards} x {CAPACITY:,} values of {bits} bits, one core, from a "
                f"sample of {sample}; "
                f"python-paillier {shards * CAPACITY * peer.median_cpu:.0f} s",
            )


def _each(encrypt: Any, times: int) -> None:
    for _ in range(times):
        encrypt(0.5)


def _sizes(key: PrivateKey, *, quick: bool, seed: int) -> Iterator[Row]:
    """Bytes per weight in a whole contribution: shares, header and signatures included."""
    for users in (5, 20, 100, 1_000, 10_000):
        settings = Settings(dimension=DIMENSION, users=users)
        yield Row(
            id=f"federated.bytes_per_weight_n{users}",
            value=contribution_bytes(settings, DIMENSION) / DIMENSION,
            unit="bytes",
            seed=seed,
            note=f"key shared among {settings.n_holders} holders, {settings.needed} needed, "
            "X25519 and ML-KEM-768",
        )


def _openers(key: PrivateKey, *, quick: bool, seed: int) -> Iterator[Row]:
    """What a holder does for a sum of 100 users, against one power for every packed block."""
    users = 20 if quick else 100
    settings = Settings(dimension=DIMENSION, users=users, holders=5)
    parties = enrol(settings)
    role, question = _round_of(
        parties[Role.AGGREGATOR][0],
        parties[Role.USER],
        parties[Role.HOLDER][4],
        table2_update(0.956, seed=seed),
    )
    share = _Times()
    share.run(lambda: role.receive(question))
    # Before: c^(2 Δ f(i)) modulo n² for each of the packed blocks, an exponent of twice the
    # modulus' bits.
    slots = (key.public.plaintext_bits - 56 - 7) // (16 + 7 + 7)
    blocks = -(-DIMENSION // slots)
    sample = [key.public.encrypt(i) for i in range(5 if quick else 20)]
    exponent = gmpy2.mpz(secrets.randbits(2 * key.public.bits)) | 1
    power = _Times()
    power.run(
        lambda: gmpy2.powmod_base_list(sample, exponent, key.public.modulus), times=len(sample)
    )
    before = blocks * power.median_cpu
    now = share.median_cpu * 100 / users
    yield Row(
        id="federated.key_holder_cpu_vs_before",
        value=before / now,
        unit="times",
        seed=seed,
        seconds=now,
        note=f"CPU for 100 users; before: {before:.1f} s for {blocks:,} packed blocks, from a "
        f"sample of {len(sample)}",
    )


def _round_of(
    collector: Enrolment, users: list[Enrolment], opener: Enrolment, update: NDArray[np.float64]
) -> tuple[KeyHolder, bytes]:
    """A holder, and what it is asked to collect after all users contributed."""
    aggregator = Aggregator(collector)
    for opening, enrolment in zip(aggregator.open_round(1, bytes(32)), users, strict=True):
        user = User(enrolment)
        user.receive(opening.data)
        aggregator.receive(user.contribute(update)[0].data)
    role = KeyHolder(opener)
    aggregator.seal()
    [question] = aggregator.ask(role.number)
    return role, question.data

"""What one user spends on one round of Table 2's vector, in CPU seconds and bytes: ours and the
peers', in one run.

All hide an update of 206,848 weights (95.6% zeros) in a sum of N, on one core. `paper`,
python-paillier and pypaillier are extrapolated from a sample, one ciphertext per weight; the others
do the whole. Not the same protection: Flower's masks need every pair of users to agree on keys and
draw each mask from 32 bits of seed; CKKS sums are approximate and their key holder can open any one
user.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.federated.crypto import CAPACITY, DIMENSION, table2_update
from benchmarks.harness import Row
from blindsight.core.checks import optional_module
from blindsight.core.errors import MissingDependency
from blindsight.federated.paper import paillier
from blindsight.federated.paper.paillier import PrivateKey
from blindsight.federated.sums import Aggregator, Role, Settings, User, enrol

__all__ = ["peer_rows"]

Measured = tuple[float, int, str]  # seconds, bytes, what was done
_PEERS = {
    "phe": "python-paillier",
    "pypaillier": "pypaillier",
    "tenseal": "TenSEAL",
    "tenseal_bfv": "TenSEAL",
    "secagg": "Flower SecAgg+",
}


def peer_rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None
) -> Iterator[Row]:
    """Seconds and bytes per user for N = 5 and 100."""
    key, update = paillier.generate(2048), table2_update(0.956, seed=seed)
    _ = key.public.fixed_base
    plans: list[tuple[str, int, Callable[[], Measured]]] = []
    for users in (5, 100):
        plans += [
            ("pad", users, partial(_pad, update, users, 5)),
            ("paper", users, partial(_paper, key, sample=100 if quick else 500)),
            ("phe", users, partial(_phe, key.public.bits, update, sample=20 if quick else 200)),
            (
                "pypaillier",
                users,
                partial(_pypaillier, key.public.bits, update, sample=200 if quick else 1000),
            ),
            ("tenseal", users, partial(_tenseal, update)),
            ("tenseal_bfv", users, partial(_tenseal_bfv, update)),
            ("secagg", users, partial(_secagg, update, users - 1)),
        ]
    plans += [(f"masks_{n}", 100, partial(_secagg, update, n)) for n in (4, 20)]
    spent: dict[tuple[str, int], float] = {}
    for done, (name, users, measure) in enumerate(plans, start=1):
        try:
            runs = [measure() for _ in range(1 if quick else 3)]
        except MissingDependency as error:
            yield Row(
                id=f"federated.skipped.{name}_n{users}", value=0, unit="skipped", note=str(error)
            )
            continue
        seconds, size, note = statistics.median(run[0] for run in runs), runs[0][1], runs[0][2]
        spent[name, users] = seconds
        yield Row(
            id=f"federated.user_seconds_{name}_n{users}",
            value=seconds,
            unit="CPU seconds",
            peer=_PEERS.get(name),
            seed=seed,
            seconds=seconds,
            note=note,
        )
        yield Row(
            id=f"federated.user_bytes_{name}_n{users}",
            value=size / DIMENSION,
            unit="bytes per weight",
            seed=seed,
        )
        if progress is not None:
            progress(done, len(plans))
    yield from _ratios(spent, seed)


def _ratios(spent: dict[tuple[str, int], float], seed: int) -> Iterator[Row]:
    """Ours against peers who do the same job, 100 users; masks at three numbers of neighbours."""
    masks = {"masks_4": "masks_4", "masks_20": "masks_20", "masks_99": "secagg"}
    for name, peer in {"tenseal_bfv": "tenseal_bfv", **masks}.items():
        if (peer, 100) in spent:
            yield Row(
                id=f"federated.user_cpu_vs_{name}",
                value=spent[peer, 100] / spent["pad", 100],
                unit="times",
                peer=_PEERS.get(peer, "Flower SecAgg+"),
                seed=seed,
                seconds=spent["pad", 100],
                note="CPU, one core, 100 users, key shared among 5 holders"
                + (f"; masks with {name[6:]} neighbours" if name.startswith("masks") else ""),
            )


def _pad(update: NDArray[np.float64], users: int, holders: int) -> Measured:
    settings = Settings(dimension=DIMENSION, users=users, holders=holders)
    parties = enrol(settings)
    aggregator = Aggregator(parties[Role.AGGREGATOR][0])
    openings = aggregator.open_round(1, bytes(32))
    seconds = []
    # The first loads compiled code and makes tables.
    for enrolment, opening in zip(parties[Role.USER][:3], openings, strict=False):
        user = User(enrolment)
        user.receive(opening.data)
        start = time.process_time()
        [sent] = user.contribute(update)
        seconds.append(time.process_time() - start)
    how = f"the key shared among {holders}, {settings.needed} needed"
    return (
        min(seconds[1:]),
        len(sent.data),
        f"everything a user does: fixed point, tag, pad, {how}, sealing, signatures",
    )


def _paper(key: PrivateKey, *, sample: int) -> Measured:
    start = time.process_time()
    key.public.encrypt_many(range(sample))
    each = (time.process_time() - start) / sample
    width = key.public.ciphertext_bytes + 4
    return (
        CAPACITY * each,
        CAPACITY * width + 145,
        f"M = {CAPACITY:,}, one shard, from a sample of {sample}",
    )


def _phe(bits: int, update: NDArray[np.float64], *, sample: int) -> Measured:
    phe = optional_module("phe", extra="bench")
    public = phe.generate_paillier_keypair(n_length=bits)[0]
    start = time.process_time()
    for value in update[:sample]:
        public.encrypt(float(value))
    each = (time.process_time() - start) / sample
    return DIMENSION * each, DIMENSION * (bits // 4 + 4), f"every weight, from a sample of {sample}"


def _pypaillier(bits: int, update: NDArray[np.float64], *, sample: int) -> Measured:
    """A Rust core on GMP that uses all cores by itself."""
    paillier = optional_module("paillier", extra="bench")
    public = paillier.generate_keypair(bits)[0]
    values = update[:sample].tolist()
    start = time.process_time()
    size = sum(len(bytes(part)) for part in paillier.encrypt_many(public, values))
    each = (time.process_time() - start) / sample
    return (
        DIMENSION * each,
        DIMENSION * size // sample,
        f"every weight, all cores, from a sample of {sample}",
    )


def _tenseal(update: NDArray[np.float64]) -> Measured:
    ts = optional_module("tenseal", extra="bench")
    context = ts.context(
        ts.SCHEME_TYPE.CKKS, poly_modulus_degree=8192, coeff_mod_bit_sizes=[60, 40, 60]
    )
    context.global_scale = 2**40
    start = time.process_time()
    parts = [
        ts.ckks_vector(context, update[i : i + 4096].tolist()) for i in range(0, DIMENSION, 4096)
    ]
    size = sum(len(part.serialize()) for part in parts)
    return (
        time.process_time() - start,
        size,
        "CKKS, degree 8192, 4,096 weights a ciphertext; sums are approximate",
    )


def _tenseal_bfv(update: NDArray[np.float64]) -> Measured:
    """Exact like ours: sixteen-bit whole numbers, a plaintext modulus that holds the sum of many
    users.
    """
    ts = optional_module("tenseal", extra="bench")
    context = ts.context(
        ts.SCHEME_TYPE.BFV, poly_modulus_degree=4096, plain_modulus=(1 << 25) - (1 << 14) + 1
    )
    numbers = np.rint(update * 32767).astype(np.int64)
    start = time.process_time()
    parts = [
        ts.bfv_vector(context, numbers[i : i + 4096].tolist()) for i in range(0, DIMENSION, 4096)
    ]
    size = sum(len(part.serialize()) for part in parts)
    return (
        time.process_time() - start,
        size,
        "BFV, degree 4096, 4,096 weights per ciphertext; exact",
    )


def _secagg(update: NDArray[np.float64], neighbours: int) -> Measured:
    """Flower's SecAgg+ client, stage 2: quantise, add the private and the neighbours' masks."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    optional_module("flwr", extra="cluster")
    from flwr.common.secure_aggregation.crypto import symmetric_encryption
    from flwr.common.secure_aggregation.quantization import quantize
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    ec: Any = optional_module("cryptography.hazmat.primitives.asymmetric.ec", extra="cluster")
    own = ec.generate_private_key(ec.SECP384R1())
    others = [ec.generate_private_key(ec.SECP384R1()).public_key() for _ in range(neighbours)]
    modulus, shape = 1 << 32, [update.shape]
    start = time.process_time()
    masked = quantize([update], 1.0, 1 << 22)[0] + pseudo_rand_gen(bytes(32), modulus, shape)[0]
    for i, other in enumerate(others):
        shared = symmetric_encryption.generate_shared_key(own, other)
        mask = pseudo_rand_gen(shared, modulus, shape)[0]
        masked = masked + mask if i % 2 else masked - mask
    size = len((masked % modulus).astype(np.int64).tobytes())
    return (
        time.process_time() - start,
        size,
        f"SecAgg+ masks with {neighbours} neighbours, each from a 32-bit seed",
    )

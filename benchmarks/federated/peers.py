"""What one user spends on one round of Table 2's vector, in seconds and bytes: ours and the peers', in one run.

All hide an update of 206,848 weights (95.6% zeros) in a sum of N. `paper`, python-paillier and pypaillier are
extrapolated from a sample, one ciphertext a weight; the others do the whole. Not the same protection: Flower's masks
need every pair of users to agree on keys and draw each mask from 32 bits of seed; CKKS sums are approximate and their
key holder can open any one user.
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
from blindsight.federated import keys
from blindsight.federated.paillier import PrivateKey
from blindsight.federated.protocol import Settings, block, enrol

__all__ = ["peer_rows"]

Measured = tuple[float, int, str]  # seconds, bytes, what was done
_PEERS = {"phe": "python-paillier", "pypaillier": "pypaillier", "tenseal": "TenSEAL", "secagg": "Flower SecAgg+"}


def peer_rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None
) -> Iterator[Row]:
    """Seconds and bytes a user for N = 5 and 100."""
    key, update = keys.generate(2048), table2_update(0.956, seed=seed)
    _ = key.public.fixed_base
    plans: list[tuple[str, int, Callable[[], Measured]]] = []
    for users in (5, 100):
        plans += [
            ("block", users, partial(_block, key, update, users)),
            ("paper", users, partial(_paper, key, sample=100 if quick else 500)),
            ("phe", users, partial(_phe, key.public.bits, update, sample=20 if quick else 200)),
            ("pypaillier", users, partial(_pypaillier, key.public.bits, update, sample=200 if quick else 1000)),
            ("tenseal", users, partial(_tenseal, update)),
            ("secagg", users, partial(_secagg, update, users)),
        ]
    for done, (name, users, measure) in enumerate(plans, start=1):
        try:
            runs = [measure() for _ in range(1 if quick else 3)]
        except MissingDependency as error:
            yield Row(id=f"federated.skipped.{name}_n{users}", value=0, unit="skipped", note=str(error))
            continue
        seconds, size, note = statistics.median(run[0] for run in runs), runs[0][1], runs[0][2]
        yield Row(
            id=f"federated.user_seconds_{name}_n{users}",
            value=seconds,
            unit="seconds",
            peer=_PEERS.get(name),
            seed=seed,
            seconds=seconds,
            note=note,
        )
        yield Row(id=f"federated.user_bytes_{name}_n{users}", value=size / DIMENSION, unit="bytes a weight", seed=seed)
        if progress is not None:
            progress(done, len(plans))


def _block(key: PrivateKey, update: NDArray[np.float64], users: int) -> Measured:
    settings = Settings(dimension=DIMENSION, users=users)
    enrolment = enrol(settings, key).users[0]
    start = time.perf_counter()
    numbers = settings.code.encode(update)
    body = block.contribution(enrolment, bytes(40), numbers, update != 0, pool=None, workers=2)
    size = len(body.encode()) + 136
    return time.perf_counter() - start, size, "packed, contributors counted per coordinate, wall, both cores"


def _paper(key: PrivateKey, *, sample: int) -> Measured:
    start = time.perf_counter()
    key.public.encrypt_many(range(sample))
    each = (time.perf_counter() - start) / sample
    width = key.public.ciphertext_bytes + 4
    return CAPACITY * each, CAPACITY * width + 145, f"M = {CAPACITY:,}, one shard, from a sample of {sample}"


def _phe(bits: int, update: NDArray[np.float64], *, sample: int) -> Measured:
    phe = optional_module("phe", extra="bench")
    public = phe.generate_paillier_keypair(n_length=bits)[0]
    start = time.perf_counter()
    for value in update[:sample]:
        public.encrypt(float(value))
    each = (time.perf_counter() - start) / sample
    return DIMENSION * each, DIMENSION * (bits // 4 + 4), f"every weight, from a sample of {sample}"


def _pypaillier(bits: int, update: NDArray[np.float64], *, sample: int) -> Measured:
    """A Rust core on GMP that uses all cores by itself."""
    paillier = optional_module("paillier", extra="bench")
    public = paillier.generate_keypair(bits)[0]
    values = update[:sample].tolist()
    start = time.perf_counter()
    size = sum(len(bytes(part)) for part in paillier.encrypt_many(public, values))
    each = (time.perf_counter() - start) / sample
    return DIMENSION * each, DIMENSION * size // sample, f"every weight, all cores, from a sample of {sample}"


def _tenseal(update: NDArray[np.float64]) -> Measured:
    ts = optional_module("tenseal", extra="bench")
    context = ts.context(ts.SCHEME_TYPE.CKKS, poly_modulus_degree=8192, coeff_mod_bit_sizes=[60, 40, 60])
    context.global_scale = 2**40
    start = time.perf_counter()
    parts = [ts.ckks_vector(context, update[i : i + 4096].tolist()) for i in range(0, DIMENSION, 4096)]
    size = sum(len(part.serialize()) for part in parts)
    return time.perf_counter() - start, size, "CKKS, degree 8192, 4,096 weights a ciphertext; sums are approximate"


def _secagg(update: NDArray[np.float64], users: int) -> Measured:
    """Flower's SecAgg+ client, stage 2: quantise, add the private mask and one mask for each other user."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    optional_module("flwr", extra="cluster")
    from flwr.common.secure_aggregation.crypto import symmetric_encryption
    from flwr.common.secure_aggregation.quantization import quantize
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    ec: Any = optional_module("cryptography.hazmat.primitives.asymmetric.ec", extra="cluster")
    own = ec.generate_private_key(ec.SECP384R1())
    others = [ec.generate_private_key(ec.SECP384R1()).public_key() for _ in range(users - 1)]
    modulus, shape = 1 << 32, [update.shape]
    start = time.perf_counter()
    masked = quantize([update], 1.0, 1 << 22)[0] + pseudo_rand_gen(bytes(32), modulus, shape)[0]
    for i, other in enumerate(others):
        shared = symmetric_encryption.generate_shared_key(own, other)
        mask = pseudo_rand_gen(shared, modulus, shape)[0]
        masked = masked + mask if i % 2 else masked - mask
    size = len((masked % modulus).astype(np.int64).tobytes())
    return time.perf_counter() - start, size, f"SecAgg+ masks with {users - 1} neighbours, each from a 32-bit seed"

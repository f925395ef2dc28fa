"""Tables 1 and 2 and Figures 2 and 3 of the paper, with the paper's numbers beside ours."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row
from benchmarks.hashing import plots
from benchmarks.hashing.paper import BITS
from benchmarks.hashing.protocols import Repeated
from benchmarks.hashing.sets import Collection
from blindsight.core.codes import pack, unpack
from blindsight.evaluation import retrieval
from blindsight.hashing import ADSH, DPSH, DSH, ITQ, KSH, LSH, PITQ, SDH, SH, HashNet
from blindsight.privacy.mechanisms import BitFlip

__all__ = ["BASES", "DEEP", "dsh_rows", "figure_3", "tables"]

BASES: tuple[str, ...] = ("LSH", "ITQ", "SH", "KSH", "SDH", "DPSH", "DSH", "HashNet", "ADSH")
EPSILONS = (1.0, 2.0, 4.0)
FIGURE_2 = ("ITQ", "KSH", "DSH")
DEEP = ("DPSH", "DSH", "HashNet", "ADSH")
# About 600 batches of 128 train a head; ADSH counts rounds of 5,000 images instead.
_BATCHES = 600


def make(name: str, n_bits: int, seed: int, n_images: int) -> Any:
    """A base of the paper, unfitted, sized for a set of n images."""
    epochs = max(2, round(_BATCHES * 128 / n_images))
    if name in ("DPSH", "DSH", "HashNet"):
        return {"DPSH": DPSH, "DSH": DSH, "HashNet": HashNet}[name](
            n_bits, n_epochs=epochs, random_state=seed
        )
    if name == "ADSH":
        return ADSH(n_bits, n_epochs=15, random_state=seed)
    return {"LSH": LSH, "ITQ": ITQ, "SH": SH, "KSH": KSH, "SDH": SDH}[name](
        n_bits, random_state=seed
    )


def tables(
    collection: Collection, out: Path, *, bases: tuple[str, ...], bits: tuple[int, ...]
) -> Iterator[Row]:
    """Tables 1 and 2, then Figure 2 (precision-recall by radius, over the seeds) and Figure 3 (mAP
    at epsilon 1).
    """
    curves: dict[tuple[str, int, float], list[plots.Curve]] = {}
    found: list[Row] = []
    for name in bases:
        for n_bits in bits:
            for row in _table_1(collection, name, n_bits, curves):
                found.append(row)
                yield row
    for n_bits in bits:
        for row in _table_2(collection, n_bits):
            found.append(row)
            yield row
    if set(FIGURE_2) & set(bases):
        plots.precision_recall(curves, out / f"figure-2-{collection.name}.svg", collection.name)
    figure_3(collection.name, ((row.id, row.value, row.note or "") for row in found), out)


def dsh_rows(collection: Collection, *, rate: float, bits: tuple[int, ...]) -> Iterator[Row]:
    """DSH's line of Table 1 without noise again, with another learning rate than the 0.001 that
    all bases have in the tables.
    """
    for n_bits in bits:
        values, start = [], time.process_time()
        for seed in collection.seeds:
            codes = _codes(collection, "DSH", n_bits, seed, learning_rate=rate)
            values.append(retrieval.average_precisions(_counts(collection, *codes)).mean)
        found, spent = Repeated(tuple(values)), time.process_time() - start
        name = f"dsh_rate_{rate:g}"
        yield _row(collection, name, "DSH", n_bits, 0.0, found, f"learning rate {rate:g}", spent)


def figure_3(name: str, rows: Iterable[tuple[str, float, str]], out: Path) -> None:
    """Draw Figure 3 of a set from its rows: ids, values, and notes that begin with the deviation
    over the seeds.
    """
    lines: dict[str, dict[int, tuple[float, float]]] = {}
    for row_id, value, note in rows:
        match = re.fullmatch(
            rf"hashing\.{re.escape(name)}\.(table1|table2)\.(\w+)\.(\d+)bits\.eps1", row_id
        )
        if match is None:
            continue
        base = match[2] if match[1] == "table2" else f"PHashing ({match[2]})"
        spread = re.search(r"± ([\d.]+)", note)
        lines.setdefault(base, {})[int(match[3])] = (value, float(spread[1]) if spread else 0.0)
    ordered = {base: dict(sorted(values.items())) for base, values in lines.items()}
    plots.by_bits(ordered, out / f"figure-3-{name}.svg", f"{name}, epsilon 1 (paper's)")


def _table_1(
    collection: Collection,
    name: str,
    n_bits: int,
    curves: dict[tuple[str, int, float], list[plots.Curve]],
) -> Iterator[Row]:
    """mAP of a base without noise and under PHashing (paper calibration). As in the paper, the hash
    function is learned from the database itself.
    """
    found: dict[float, list[float]] = {epsilon: [] for epsilon in (0.0, *EPSILONS)}
    said, start = "", time.process_time()
    for seed in collection.seeds:
        query, stored = _codes(collection, name, n_bits, seed)
        for epsilon in found:
            counts = _counts(collection, query, _flipped(stored, epsilon, n_bits, seed))
            precision = retrieval.average_precisions(counts)
            found[epsilon].append(precision.mean)
            if name in FIGURE_2:
                curves.setdefault((name, n_bits, epsilon), []).append(
                    plots.lookup_curve(counts, n_bits)
                )
            if epsilon == 0 and seed == collection.seeds[0]:
                said = f"by tie order {precision.bounds[0]:.3f} to {precision.bounds[1]:.3f}"
                if name == "ADSH":
                    said += f"; its learned U has {len(np.unique(stored, axis=0))} distinct codes"
    yield from _rows(collection, name, n_bits, found, said, time.process_time() - start)


def _table_2(collection: Collection, n_bits: int, n_images: int = 10_000) -> Iterator[Row]:
    """PITQ to the letter beside ITQ; W and R are learned from the first `n_images` of the
    database.
    """
    learn = collection.database[:n_images]
    for epsilon in (0.0, 0.25, 0.5, 1.0, 4.0):
        values, start = [], time.process_time()
        for seed in collection.seeds:
            hasher: Any = ITQ(n_bits, random_state=seed)
            if epsilon:
                hasher = PITQ(n_bits, epsilon=epsilon, calibration="paper", random_state=seed)
            hasher.fit(learn)
            counts = _counts(
                collection,
                hasher.transform(collection.queries),
                hasher.transform(collection.database),
            )
            values.append(retrieval.average_precisions(counts).mean)
        name, repeated = "PITQ" if epsilon else "ITQ", Repeated(tuple(values))
        spent = time.process_time() - start
        yield _row(collection, f"table2.{name}", name, n_bits, epsilon, repeated, "", spent)


def _codes(
    collection: Collection, name: str, n_bits: int, seed: int, **changes: Any
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """(queries' codes, U): h of the database, or ADSH's learned codes, which Algorithm 2 flips."""
    hasher = make(name, n_bits, seed, len(collection.database)).set_params(**changes)
    # Deep hashers see all features; principal components, whitened or not, cost DSH and DPSH much.
    whole = name in DEEP and collection.raw is not None
    queries, database = collection.raw if whole else (collection.queries, collection.database)  # type: ignore[misc]
    hasher.fit(database, collection.database_labels if hasher.supervised else None)
    learned = getattr(hasher, "database_codes_", None)
    return hasher.transform(queries), hasher.transform(database) if learned is None else learned


def _flipped(
    stored: NDArray[np.uint8], epsilon: float, n_bits: int, seed: int
) -> NDArray[np.uint8]:
    if epsilon == 0:
        return stored
    flip, rng = BitFlip.paper(epsilon, n_bits=n_bits), np.random.default_rng(1000 + seed)
    return pack(flip.release(unpack(stored, n_bits), rng=rng))


def _counts(
    collection: Collection, query: NDArray[np.uint8], stored: NDArray[np.uint8]
) -> NDArray[np.int64]:
    return retrieval.distance_counts(
        query, stored, collection.query_labels, collection.database_labels
    )


def _rows(
    collection: Collection,
    name: str,
    n_bits: int,
    found: dict[float, list[float]],
    said: str,
    seconds: float,
) -> Iterator[Row]:
    """A row for each epsilon; the CPU seconds of all of them stand on the row without noise."""
    plain = Repeated(tuple(found[0.0])).mean
    for epsilon, values in found.items():
        repeated = Repeated(tuple(values))
        if epsilon == 0:
            note = said
        else:
            cost = BitFlip.paper(epsilon, n_bits=n_bits).cost.epsilon
            kept = (repeated.mean - collection.chance) / max(plain - collection.chance, 1e-9)
            note = (
                f"keeps {kept:.2f} of the excess over chance; proven epsilon per record {cost:.1f}"
            )
        spent = None if epsilon else seconds
        yield _row(collection, f"table1.{name}", name, n_bits, epsilon, repeated, note, spent)


def _row(
    collection: Collection,
    table: str,
    name: str,
    n_bits: int,
    epsilon: float,
    found: Repeated,
    note: str,
    seconds: float | None,
) -> Row:
    printed = None
    if collection.paper is not None and n_bits in BITS:
        printed = collection.paper[name][epsilon][BITS.index(n_bits)]
    suffix = f"eps{epsilon:g}" if epsilon else "plain"
    where = "" if collection.stands_for is None else f"paper's is {collection.stands_for}; "
    return Row(
        id=f"hashing.{collection.name}.{table}.{n_bits}bits.{suffix}",
        value=found.mean,
        unit="mAP",
        paper=printed,
        seconds=seconds,
        note=f"{where}± {found.deviation:.4f} over {len(found.values)} seeds; {note}".rstrip("; "),
    )

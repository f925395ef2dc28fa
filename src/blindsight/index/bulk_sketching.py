"""Bulk sketching: blocks of a set to sketches or flipped bits, into one file, here or on a
cluster.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import durable
from blindsight.core.errors import InvalidParameter, UnchargedRelease
from blindsight.index.bulk import HERE, Contents, Pool, Spool
from blindsight.privacy import Ledger
from blindsight.sketching.parameters import pixels_of
from blindsight.sketching.sketches import Permanent, SketchSet, SketchWriter, state_of

__all__ = ["sketch_to"]

Prepare = Callable[[Any], NDArray[Any]]


def sketch_to(
    path: str | Path,
    X: Any,
    sketcher: Any,
    y: Any = None,
    *,
    prepare: Prepare | None = None,
    block: int | None = None,
    ledger: Ledger | None = None,
    pool: Pool = HERE,
    progress: Callable[[int, int], None] | None = None,
) -> SketchSet:
    """Sketch a set of any size into a file; a second call resumes what a first left undone.

    Parameters:
        X: an array, a memory map or an image set; a block's images travel to its worker (of files
            only the names).
        sketcher: a fitted `NegativeSketcher` or `FlippedBits`.
        prepare: turns a slice of X into an array of images, by default `.array()`.
        block: images a block; with a seed, the noise hangs on it.
        ledger: charged with the sketcher's guarantee once, before the first block, however often
            the job is continued.
        pool: `Here()`, or `OnRay(...)`, whose workers must see the file's folder.
    """
    if isinstance(sketcher.random_state, (np.random.Generator, np.random.RandomState)):
        raise InvalidParameter(
            "random_state must be None or a seed: blocks made in any order cannot share dice."
        )
    if isinstance(sketcher.random_state, Permanent) and pool is not HERE:
        raise InvalidParameter(
            "a vault's key stays on this machine: with permanent noise, workers cannot draw it."
        )
    writer = SketchWriter.of(path, sketcher, X, y, block=block)
    state = sketcher.random_state
    if ledger is not None and isinstance(state, Permanent):
        ledger = state.account(ledger, sketcher.mechanism_id_)
    if (
        writer.finished
    ):  # nothing to draw; with permanent noise, whoever forgot the ledger before pays now
        if ledger is not None and isinstance(state, Permanent):
            _charge(ledger, sketcher, writer.n, None)
        return writer.finish()
    held = Spool.begin(writer.target.with_name(writer.target.name + ".shards"), writer.fingerprint)
    if (
        ledger is not None and writer.missing()
    ):  # all drawn before, and died before the file got its name: paid for
        _charge_once(ledger, sketcher, writer, held)
    for key in list(held.finished()):
        _take_in(writer, held.read(key))
        held.taken(key)
    missing = writer.missing()
    done = len(X) - sum(rows.stop - rows.start for rows in missing)
    parts = (
        (f"{rows.start:012d}", (rows.start, rows.start // writer.block, X[rows]))
        for rows in missing
    )
    draw = _Draw(sketcher, prepare or pixels_of, pool.threads, charged=ledger is not None)
    for contents in pool.run(draw, parts, held):
        done += _take_in(writer, contents)
        if progress is not None:
            progress(done, len(X))
    # Before the file gets its name: a spool left behind would lend its charge to a second release
    # of the images.
    held.close()
    return writer.finish()


@dataclass(frozen=True)
class _Draw:
    """The work on one block, with dice that no other block has."""

    sketcher: Any
    prepare: Prepare
    threads: int | None
    charged: bool

    def __call__(self, part: tuple[int, int, Any]) -> Contents:
        start, number, images = part
        drawer = copy.copy(self.sketcher)
        drawer.random_state = state_of(self.sketcher.random_state, number)
        drawer.n_jobs = self.threads or getattr(drawer, "n_jobs", None)
        with warnings.catch_warnings():
            if self.charged:  # once, for all blocks
                warnings.simplefilter("ignore", UnchargedRelease)
            return {"counts": drawer.transform(self.prepare(images))}, {"start": start}


def _take_in(writer: SketchWriter, contents: Contents) -> int:
    counts, start = contents[0]["counts"], int(contents[1]["start"])
    writer.write(slice(start, start + len(counts)), counts)
    return len(counts)


def _charge_once(ledger: Ledger, sketcher: Any, writer: SketchWriter, held: Spool) -> None:
    """Charge the job, by its number: however often it is continued, and by whom, it is one charge.

    A refusal leaves nothing behind.
    """
    try:
        _charge(ledger, sketcher, writer.n, f"sketches {held.number}")
    except BaseException:
        if not writer.done.any() and not any(held.finished()):
            durable.remove(writer.partial)
            held.close()
        raise


def _charge(ledger: Ledger, sketcher: Any, images: int, key: str | None) -> None:
    ledger.charge(
        sketcher.guarantee_.costs,
        what=f"flipped bits of {images} images, each released once",
        key=key,
    )

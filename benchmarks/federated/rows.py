"""`python -m benchmarks federated`: encryption against its peers, and the paper's tables and
figures.

`python -m benchmarks.federated.rows flower deployment` measures these parts only, and puts their
rows into docs/results/federated.json; `accuracy:table2` is one table of the paper.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.federated.accuracy import STAGES, accuracy_rows
from benchmarks.federated.attacks import attack_rows
from benchmarks.federated.carriers import carrier_rows
from benchmarks.federated.crypto import crypto_rows
from benchmarks.federated.deployment import deployment_rows
from benchmarks.federated.flower import flower_rows
from benchmarks.federated.peers import peer_rows
from benchmarks.federated.scale import scale_rows
from benchmarks.federated.timing import timing_rows
from benchmarks.harness import Row, put_row

__all__ = ["PARTS", "main", "rows"]

PARTS: dict[str, Callable[..., Iterator[Row]]] = {
    "crypto": crypto_rows,
    "peers": peer_rows,
    "attacks": attack_rows,
    "timing": timing_rows,
    "scale": scale_rows,
    "carriers": carrier_rows,
    "flower": flower_rows,
    "deployment": deployment_rows,
    "accuracy": accuracy_rows,
}


def rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None
) -> Iterator[Row]:
    """Every row; quick: within a minute, on digits."""
    parts = [part for name, part in PARTS.items() if not quick or name != "deployment"]
    for done, part in enumerate(parts):

        def inner(now: int, total: int, done: int = done) -> None:
            if progress is not None:
                progress(100 * done + 100 * now // total, 100 * len(parts))

        yield from part(quick=quick, seed=seed, out=out, progress=inner)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure some parts again, and put their rows into a report in place of the old ones."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.federated.rows")
    stages = tuple(f"accuracy:{name}" for name in STAGES)
    parser.add_argument("parts", nargs="+", choices=(*PARTS, *stages))
    parser.add_argument("--json", type=Path, default=Path("docs/results/federated.json"))
    given = parser.parse_args(arguments)
    for part in given.parts:
        name, _, stage = part.partition(":")
        chosen = {"stages": (stage,)} if stage else {}
        for row in PARTS[name](quick=False, out=Path("out/bench/federated"), **chosen):
            print(f"{row.id}  {row.value:.4g} {row.unit}\n    {row.note}", flush=True)
            put_row(given.json, row)


if __name__ == "__main__":
    main()

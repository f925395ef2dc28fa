"""What the checks of vault, ledger and identity cost: two versions of the package in one run.

    git worktree add /tmp/before 72cecb9      # any earlier version
    python -m benchmarks.privacy.state_cost /tmp/before/src

Both versions take turns, each in a process of its own: `protect` of 100 PNG photos with a ledger,
the same again, and the same with all photos renamed; CPU seconds are of the process and of those
that decode for it. Utility: how often the majority label of a released cell is right, on digits.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PHOTOS, _SIDE, _SEEDS = 100, 192, 20
_CHILD = f"""
import json, os, resource, sys, tempfile, warnings
from pathlib import Path
import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
warnings.simplefilter("ignore")
from blindsight.app.protect import protect
from blindsight.privacy import Cost, Ledger
from blindsight.hashing import CodebookHasher

def spent():
    own, decoders = (resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in (own, decoders))

module = sys.modules["blindsight.app.protect"]
shared = [0.0]  # seconds for what later versions write beside the codes: the page, cards, a signature
if hasattr(module, "share_release"):
    original = module.share_release

    def share(*given, **named):
        before = spent()
        made = original(*given, **named)
        shared[0] += spent() - before
        return made

    module.share_release = share
rng, told = np.random.default_rng(0), {{}}
with tempfile.TemporaryDirectory() as place:
    base = Path(place)
    (base / "photos").mkdir()
    for number in range({_PHOTOS}):
        pixels = np.kron(rng.integers(0, 256, (12, 12, 3)), np.ones(({_SIDE} // 12,) * 2 + (1,)))
        Image.fromarray(pixels.astype(np.uint8)).save(base / "photos" / f"{{number}}.png")
    with Ledger(base / "budget.db", dataset="photos") as ledger:
        ledger.grant(Cost(epsilon=100, delta=1e-3, unit="record"))

    def run(name):
        before, shared[0] = spent(), 0.0
        protect(base / "photos", base / "out", encoder="pixels", ledger=base / "budget.db", dataset="photos")
        told[name] = spent() - before
        told[name + ", codes only"] = told[name] - shared[0]

    run("first")
    run("again")
    for path in sorted((base / "photos").iterdir()):
        path.rename(path.with_name("r" + path.name))
    run("renamed")
X, y = load_digits(return_X_y=True)
X = X - X.mean(axis=0)
right = []
for seed in range({_SEEDS}):
    hasher = CodebookHasher(epsilon=4.0, n_cells=16, learned_from="public", random_state=seed).fit(X[:600])
    codes = np.asarray(hasher.transform(X[600:]))
    _, cells = np.unique(codes.reshape(len(codes), -1), axis=0, return_inverse=True)
    cells = cells.ravel()
    counts = np.array([np.bincount(y[600:][cells == c], minlength=10).max() for c in np.unique(cells)])
    right.append(float(counts.sum() / len(cells)))
told["utility"] = float(np.mean(right))
print(json.dumps(told))
"""  # noqa: E501


def _measure(source: Path) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _CHILD],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


def main() -> None:
    """Print medians of both versions, and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("before", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    runs = [(_measure(given.before), _measure(ROOT / "src")) for _ in range(given.repeats)]
    for name in runs[0][0]:
        before, now = (statistics.median(run[which][name] for run in runs) for which in (0, 1))
        print(f"{name}: {before:.3f} -> {now:.3f} (ratio {now / before:.2f})")


if __name__ == "__main__":
    main()

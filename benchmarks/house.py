"""Figures of the code itself: size, imports, types, documentation, and how many modules and
functions a job passes.

    python -m benchmarks.house              # everything; the jobs take about a minute
    python -m benchmarks.house --no-jobs    # what can be read from the source
    python -m benchmarks.house --json FILE
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import importlib
import inspect
import io
import json
import re
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import numpy as np

from blindsight.app.audit import audit_release
from blindsight.app.protect import protect
from blindsight.app.search import search
from blindsight.app.train_tagger import train_tagger

__all__ = [
    "JOBS",
    "any_share",
    "main",
    "passed",
    "repeated_class_names",
    "single_importers",
    "sizes",
    "undocumented_names",
]

SOURCE = Path(__file__).resolve().parents[1] / "src" / "blindsight"
Trees = dict[str, ast.Module]


def read_trees(source: Path = SOURCE) -> Trees:
    """The syntax tree of every module, by dotted name."""
    collecting = gc.isenabled()
    gc.disable()  # all nodes stay: the collector would look at them again and again
    try:
        return {
            ".".join(path.relative_to(source.parent).with_suffix("").parts).removesuffix(
                ".__init__"
            ): ast.parse(path.read_text(encoding="utf-8"))
            for path in sorted(source.rglob("*.py"))
        }
    finally:
        if collecting:
            gc.enable()


def sizes(source: Path = SOURCE) -> dict[str, tuple[int, int]]:
    """Modules and lines of each folder, and of all."""
    counts: dict[str, tuple[int, int]] = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).parts
        lines = len(path.read_text(encoding="utf-8").splitlines())
        for folder in (parts[0] if len(parts) > 1 else "(top)", "all"):
            modules, total = counts.get(folder, (0, 0))
            counts[folder] = modules + 1, total + lines
    return counts


def single_importers(trees: Trees) -> list[str]:
    """Modules that exactly one other module imports, `__init__` and `__main__` left out."""
    packages = {name for name in trees if any(other.startswith(f"{name}.") for other in trees)}
    importers: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            for module in _imported(node, trees):
                if module != name:
                    importers[module].add(name)
    return sorted(
        name
        for name, users in importers.items()
        if len(users) == 1 and name not in packages and not name.endswith("__main__")
    )


def _imported(node: ast.AST, trees: Trees) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} & trees.keys()
    if isinstance(node, ast.ImportFrom) and node.module:
        inner = {f"{node.module}.{alias.name}" for alias in node.names} & trees.keys()
        whole = {node.module} & trees.keys()
        return inner if len(inner) == len(node.names) else inner | whole
    return set()


def any_share(trees: Trees) -> dict[str, tuple[int, int]]:
    """Of each folder and of all: parameters typed `Any`, and all parameters but self and cls."""
    counts: dict[str, tuple[int, int]] = {}
    for name, tree in trees.items():
        parts = name.split(".")
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            given = node.args
            parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs]
            parameters += [each for each in (given.vararg, given.kwarg) if each is not None]
            parameters = [each for each in parameters if each.arg not in ("self", "cls")]
            untyped = sum(
                each.annotation is not None and ast.unparse(each.annotation) == "Any"
                for each in parameters
            )
            for folder in (parts[1] if len(parts) > 1 else "(top)", "all"):
                loose, total = counts.get(folder, (0, 0))
                counts[folder] = loose + untyped, total + len(parameters)
    return counts


def undocumented_names() -> tuple[dict[str, str], int]:
    """What the package exports at top level and does not document, with what is missing: a
    parameter, or an example. Errors and protocols take no parameters.
    """
    package = importlib.import_module("blindsight")
    missing, count = {}, 0
    for name in package.__all__:
        value = getattr(package, name)
        is_class = isinstance(value, type)
        if not is_class and not inspect.isfunction(value):
            continue
        if is_class and (issubclass(value, Exception) or getattr(value, "_is_protocol", False)):
            continue
        count += 1
        text = inspect.cleandoc(value.__doc__ or "")
        parameters = {each for each in inspect.signature(value).parameters if each[0] != "_"}
        named = set(re.findall(r"^    (\w+): ", text, re.MULTILINE))
        lacking = sorted(parameters - named)
        if ">>> " not in text:
            lacking.append("an example")
        if lacking:
            missing[name] = ", ".join(lacking)
    return missing, count


def repeated_class_names(trees: Trees) -> dict[str, list[str]]:
    """Names that more than one public class has, with the modules that define them."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    return {name: modules for name, modules in sorted(places.items()) if len(modules) > 1}


def passed(job: Callable[[], object]) -> tuple[set[str], set[tuple[str, str]]]:
    """The modules and functions of the package that are called while the job runs, in any thread of
    this process.
    """
    calls: set[tuple[str, str]] = set()
    prefix = str(SOURCE)

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        named = code.co_flags & inspect.CO_OPTIMIZED and "<" not in code.co_name  # no class bodies
        if event == "call" and named and code.co_filename.startswith(prefix):
            calls.add((Path(code.co_filename).relative_to(SOURCE).as_posix(), code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        job()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {module for module, _ in calls}, calls


def _photos(folder: Path, count: int = 40) -> Path:
    from PIL import Image

    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(count):
        pixels = rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return folder


def _protect(folder: Path) -> Callable[[], object]:
    photos = _photos(folder / "photos")
    return lambda: protect(photos, folder / "release")


def _search(folder: Path) -> Callable[[], object]:
    _protect(folder)()
    return lambda: search(folder / "release", folder / "photos" / "07.png")


def _train_tagger(folder: Path) -> Callable[[], object]:
    photos = _photos(folder / "photos", 60)
    tags = ["dog" if number % 2 else "cat" for number in range(60)]
    lines = [f"{path.name},{tag}" for path, tag in zip(sorted(photos.iterdir()), tags, strict=True)]
    labels = folder / "labels.csv"
    labels.write_text("\n".join(["image,labels", *lines]) + "\n", encoding="utf-8")
    return lambda: train_tagger(
        photos,
        labels=labels,
        vocabulary="cat,dog",
        epsilon=2.0,
        out=folder / "tagger.safetensors",
    )


def _federated_round(folder: Path) -> Callable[[], object]:
    from sklearn.datasets import load_digits

    from blindsight.federated import FederatedClassifier

    X, y = load_digits(return_X_y=True)
    model = FederatedClassifier(users=5, rounds=1, classes=range(10))
    return lambda: model.fit(X[:400] / 16, y[:400])


def _audit(folder: Path) -> Callable[[], object]:
    _protect(folder)()
    return lambda: audit_release(folder / "release")


# Each prepares its folder and returns the work that is counted.
JOBS: dict[str, Callable[[Path], Callable[[], object]]] = {
    "protect 40 photos": _protect,
    "search": _search,
    "train a tagger": _train_tagger,
    "one federated round": _federated_round,
    "audit": _audit,
}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _count_jobs() -> dict[str, tuple[int, int]]:
    counts = {}
    for name, prepare in JOBS.items():
        with tempfile.TemporaryDirectory(prefix="house-") as folder, _quiet():
            (Path(folder) / "warm").mkdir()
            (Path(folder) / "counted").mkdir()
            prepare(Path(folder) / "warm")()  # so that what importing runs is not counted
            modules, functions = passed(prepare(Path(folder) / "counted"))
        counts[name] = len(modules), len(functions)
    return counts


def main(arguments: list[str] | None = None) -> dict[str, object]:
    """Print the figures; return them."""
    parser = argparse.ArgumentParser(prog="benchmarks.house", description=__doc__.split("\n\n")[0])
    parser.add_argument("--no-jobs", action="store_true", help="leave out what must be run")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args(arguments)
    trees = read_trees()
    size, loose = sizes(), any_share(trees)
    single, repeated = single_importers(trees), repeated_class_names(trees)
    undocumented, exported = undocumented_names()
    print(f"{'folder':14} {'modules':>8} {'lines':>8} {'Any':>7}")
    for folder, (modules, lines) in size.items():
        some, total = loose.get(folder, (0, 0))
        print(f"{folder:14} {modules:8} {lines:8,} {some / max(total, 1):7.1%}")
    by_folder = Counter(name.split(".")[1] for name in single)
    print(f"\nmodules with a single importer: {len(single)} {dict(by_folder.most_common())}")
    print(f"names of more than one public class: {len(repeated)}")
    for name, places in repeated.items():
        print(f"  {name}: {', '.join(place.removeprefix('blindsight.') for place in places)}")
    print(f"exported classes and functions: {exported}; ", end="")
    print(f"{exported - len(undocumented)} document every parameter and have an example")
    for name, lacking in undocumented.items():
        print(f"  {name} lacks {lacking}")
    jobs = {} if options.no_jobs else _count_jobs()
    for name, (modules, functions) in jobs.items():
        print(f"{name}: {modules} modules, {functions} functions")
    figures: dict[str, object] = {
        "folders": {
            folder: {"modules": modules, "lines": lines, "any": loose.get(folder, (0, 0))}
            for folder, (modules, lines) in size.items()
        },
        "single_importers": single,
        "repeated_class_names": repeated,
        "exported": {"all": exported, "undocumented": undocumented},
        "jobs": jobs,
    }
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return figures


if __name__ == "__main__":
    main()

"""A receiver's installation: the base alone opens and searches, and says what the rest needs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blindsight import protect
from blindsight.cli.main import CORE_LIBRARIES
from blindsight.privacy import Guarantee
from blindsight.privacy.accounting import Planned
from blindsight.privacy.mechanisms import Gaussian
from blindsight.release.manifest import bundle_folder, write_bundle

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

# Whatever the base does not bring cannot be imported or looked up.
READER = """
import contextlib, importlib.util, io, json, sys

ABSENT = set(json.loads(sys.argv[1]))

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
really = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: (
    None if name.partition(".")[0] in ABSENT else really(name, package)
)
"""
VERBS = (
    READER
    + """
from blindsight.cli.main import run

for arguments in json.loads(sys.argv[2]):
    sys.argv = ["blindsight", *arguments]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            run()
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""
)
LIBRARY = (
    READER
    + """
import blindsight

before = sorted(ABSENT & {name.partition(".")[0] for name in sys.modules})
release = blindsight.open_release(sys.argv[2])
release.verify(release.manifest.fingerprint)
hits = release.search(sys.argv[3], k=2).hits
print(json.dumps({
    "before": before,
    "columns": {name: len(column) for name, column in release.entries.items()},
    "hits": [hit.hit.id for hit in hits],
    "card": release.card["entries"],
}))
refused = {}
for name in blindsight.__all__:
    try:
        getattr(blindsight, name)
    except ImportError as error:
        refused[name] = [type(error).__name__, str(error)]
print(json.dumps(refused))
"""
)


def _absent() -> list[str]:
    """Every installed top-level module that no dependency of the base brings."""
    wanted, brought = ["blindsight"], set()
    while wanted:
        name = wanted.pop()
        if name in brought:
            continue
        brought.add(name)
        needs = PROJECT["dependencies"]
        if name != "blindsight":
            with suppress(metadata.PackageNotFoundError):  # for another platform
                needs = metadata.requires(name) or []
        for need in needs:
            if "extra ==" not in need:
                wanted.append(_normal(re.match(r"[\w.-]+", need)[0]))
    return sorted(
        module
        for module, names in metadata.packages_distributions().items()
        if not {_normal(name) for name in names} & brought and not module.startswith("_")
    )


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def received(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("received")
    (folder / "photos").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (6, 24, 24, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(folder / "photos" / f"{number}.png")
    protect(folder / "photos", folder / "release", encoder="pixels")
    protect(folder / "photos", folder / "flipped", encoder="pixels", method="phashing-lsh", bits=8)
    gaussian = Planned(
        what="sum", mechanism=Gaussian(sigma=4.0, sensitivity=1.0, unit="record", delta=1e-6)
    )
    promise = Guarantee(releases=(gaussian,), model="central", delta=1e-6)
    statistics = folder / "sums.safetensors"
    statistics.write_bytes(b"sums")
    write_bundle(statistics, "statistics", guarantee=promise)
    return folder


def _run(code: str, *arguments: str, cwd: Path) -> list[object]:
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(_absent()), *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_modules_that_are_hidden_are_those_of_the_extras() -> None:
    absent = set(_absent())
    assert absent >= CORE_LIBRARIES | {"onnxruntime", "onnx", "pandas", "pyarrow", "torch", "numba"}
    assert not absent & {"numpy", "PIL", "safetensors", "cryptography", "typer", "rich"}


def test_the_base_opens_and_searches_in_python(received: Path) -> None:
    photo = received / "photos" / "3.png"
    used, refused = _run(LIBRARY, str(received / "release"), str(photo), cwd=received)
    assert used["before"] == [], "importing the package imports none of them"
    assert used["columns"] == {"id": 6, "cell": 6} and used["card"] == 6
    assert len(used["hits"]) == 2
    for name, (kind, message) in refused.items():
        assert kind == "MissingDependency", f"{name}: {message}"
        assert "pip install 'blindsight[" in message, name


@pytest.fixture(scope="module")
def verbs(received: Path) -> dict[tuple[str, ...], tuple[int, str, str]]:
    listed = [
        ("open", "release"),
        ("open", "flipped"),
        ("open", bundle_folder(received / "sums.safetensors").name),
        ("search", "release", "photos/3.png", "-k", "2"),
        *_NEEDS,
    ]
    results = _run(VERBS, json.dumps(listed), cwd=received)
    return dict(zip(listed, results, strict=True))


# What an owner does, and the extra that the answer names.
_NEEDS = {
    ("search", "flipped", "photos/3.png"): "core",
    ("protect", "photos", "--out", "new"): "encoders",
    ("watch", "photos", "--out", "new"): "watch",
    ("compare", "learn", "photos"): "metric",
    ("send", "fit", "sums.safetensors"): "encoders",
    ("sketch", "recover", "sums.safetensors"): "sketching",
    ("train", "sums.safetensors"): "torch",
    ("tag", "train", "photos"): "torch",
    ("audit", "release", "--photos", "photos"): "compiled,plots",
    ("budget", "show", "--ledger", "ledger.db"): "core",
    ("index", "duplicates", "release"): "core",
    ("federate", "simulate", "--data", "digits"): "federated",
    ("serve",): "workbench",
    ("workbench", "doctor"): "workbench",
    ("demo",): "samples,encoders,words,compiled,plots",
}


def test_the_base_opens_and_searches_on_the_command_line(verbs) -> None:
    for arguments, (code, out, err) in verbs.items():
        if arguments not in _NEEDS:
            assert code == 0, (arguments, err)
            assert out.strip()


@pytest.mark.parametrize("arguments", _NEEDS, ids=" ".join)
def test_a_verb_that_needs_more_names_the_extra(arguments, verbs) -> None:
    code, _, err = verbs[arguments]
    assert code == 4, err
    assert f"pip install 'blindsight[{_NEEDS[arguments]}]'" in err
    assert "Traceback" not in err


def test_every_extra_that_protects_brings_the_core() -> None:
    extras = PROJECT["optional-dependencies"]

    def brought(extra: str) -> set[str]:
        inner = [re.match(r"blindsight\[(.+)\]", need) for need in extras[extra]]
        names = {name for each in inner if each for name in each[1].split(",")}
        return names.union(*(brought(name) for name in names))

    for extra in ("encoders", "metric", "sketching", "federated", "torch", "workbench", "all"):
        assert "core" in brought(extra), extra
    assert extras["reader"] == [], "the base is all that a receiver needs"

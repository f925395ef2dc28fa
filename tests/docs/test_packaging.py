"""The wheel, as somebody who has no clone gets it; and the pins with hashes.

The environment is fresh and the wheel is installed into it by pip. To stay within seconds, what
Blindsight needs is not downloaded again: a .pth file lends the packages of the environment that
runs the tests, and nothing else of it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blindsight.cli.licences import closure

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HASHED = [
    path
    for path in (ROOT / f"requirements-{name}.txt" for name in ("reader", "core", "all"))
    if path.exists()
]
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([A-Za-z0-9.!]+) --hash=sha256:[0-9a-f]{64}$")


def _run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in {"PYTHONPATH", "PYTHONHOME"}
    }
    return subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        env=kept,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built by `pip wheel` with the backend that is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    here = ("--no-deps", "--no-build-isolation", "--no-index")
    done = _run(
        sys.executable, "-m", "pip", "wheel", "--quiet", *here, "-w", folder, ROOT, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("blindsight-*.whl")
    return made


def _environment(place: Path, wheel: Path) -> Path:
    """A new environment with the wheel in it and nothing else; returns where its packages lie."""
    venv.create(place, with_pip=False, symlinks=True)
    done = _run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        place / "bin" / "python",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",  # a few of the modules are imported, and compiled then
        wheel,
        cwd=place,
    )
    assert done.returncode == 0, done.stderr
    return (
        place / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    )


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel in it."""
    place = tmp_path_factory.mktemp("fresh") / "venv"
    home = _environment(place, wheel)
    lent = [entry for entry in sys.path if entry.endswith("site-packages")]
    (home / "lent.pth").write_text("".join(f"{entry}\n" for entry in lent))
    return place


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"blindsight", f"blindsight-{PYPROJECT['version']}.dist-info"}
    package = ROOT / "src" / "blindsight"
    files = {path for path in package.rglob("*") if path.is_file()}
    files = {path for path in files if "__pycache__" not in path.parts}
    assert {name for name in names if name.startswith("blindsight/")} == {
        path.relative_to(package.parent).as_posix() for path in files
    }
    assert "blindsight/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any("__pycache__" in name for name in names)


def test_the_installed_wheel_says_what_it_can_do(fresh: Path, tmp_path: Path) -> None:
    shown = _run(fresh / "bin" / "blindsight", "--help", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "protect" in shown.stdout
    where = _run(
        fresh / "bin" / "python",
        "-c",
        "import blindsight; print(blindsight.__file__)",
        cwd=tmp_path,
    )
    assert where.stdout.startswith(str(fresh))


def _photos(folder: Path) -> None:
    """Photos and a query, as the README's lines expect them."""
    (folder / "photos").mkdir()
    for number in range(3):
        picture = Image.fromarray(np.full((24, 24, 3), 60 * number + 20, np.uint8))
        picture.save(folder / "photos" / f"{number}.png")
    picture.save(folder / "query.jpg")


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel and what the core needs: no package of an extra can be
    imported there.
    """
    place = tmp_path_factory.mktemp("core") / "venv"
    home = _environment(place, wheel)
    lent = place / "lent"
    lent.mkdir()
    for one in _needed("core").values():
        for top in {
            path.parts[0] for path in one.files or () if path.parts[0] not in {"..", "__pycache__"}
        }:
            if not (lent / top).exists():
                (lent / top).symlink_to(Path(str(one.locate_file(top))))
    (home / "lent.pth").write_text(f"{lent}\n")
    return place


def _needed(*extras: str) -> dict[str, metadata.Distribution]:
    """What these extras bring, as it is installed here."""
    return {
        name: one for name, one in closure("blindsight", extras).items() if name != "blindsight"
    }


@pytest.mark.parametrize(("extra", "most"), [("reader", 150e6), ("core", 500e6)])
def test_an_extra_takes_no_more_than_is_said(wheel: Path, extra: str, most: float) -> None:
    """By the files that pip notes, bytecode included; and the wheel's own, unpacked."""
    files = {
        Path(str(one.locate_file(path))).resolve()
        for one in _needed(extra).values()
        for path in one.files or ()
    }
    needed = sum(path.stat().st_size for path in files if path.is_file())
    own = sum(info.file_size for info in zipfile.ZipFile(wheel).infolist())
    assert needed + 2 * own < most


def test_the_core_alone_runs_the_readmes_lines_and_protects_a_folder(
    core: Path, tmp_path: Path
) -> None:
    _photos(tmp_path)
    (lines,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    done = _run(core / "bin" / "python", "-c", lines, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    blindsight = core / "bin" / "blindsight"
    assert _run(blindsight, "protect", "photos", "--out", "index", cwd=tmp_path).returncode == 0
    found = _run(blindsight, "search", "index", "photos/0.png", "--json", cwd=tmp_path)
    assert len(json.loads(found.stdout)["queries"][0]["hits"]) == 3
    refused = _run(blindsight, "federate", "simulate", cwd=tmp_path)
    assert (refused.returncode, "'blindsight[federated]'" in refused.stderr) == (4, True)


@pytest.mark.parametrize("path", HASHED, ids=lambda path: path.name)
def test_hashed_requirements_agree_with_the_constraints(path: Path) -> None:
    pins = dict(
        line.lower().replace("_", "-").split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    found = {}
    for line in lines:
        match = PINNED.match(line)
        assert match is not None, line
        found[match[1].lower().replace("_", "-")] = match[2].lower()
    assert sorted(found.items() - pins.items()) == []
    named = {re.split(r"[<>=\[ ]", line)[0].lower() for line in PYPROJECT["dependencies"]}
    assert named <= set(found)


def test_versions_agree() -> None:
    import blindsight

    assert blindsight.__version__ == PYPROJECT["version"]
    assert f"## {PYPROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {PYPROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text()


def test_workflows_run_what_a_developer_runs_and_hooks_fetch_nothing() -> None:
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    assert "run: make test" in workflow and 'python: ["3.11", "3.12", "3.13"]' in workflow
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert set(re.findall(r"- repo: (\S+)", hooks)) == {"local"}
    assert set(re.findall(r"language: (\S+)", hooks)) == {"system"}

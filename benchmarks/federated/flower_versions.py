"""The Flower tests with the lowest and the newest version of `flwr` that installs beside us.

    python -m benchmarks.federated.flower_versions                  # both ends of the range
    python -m benchmarks.federated.flower_versions 1.40.0 1.42.0    # these

Each version gets an environment of its own, with what that version of Flower requires; all other
packages come from the environment that runs this script. Which end is which is found by pip: the
lowest and the newest version that our own requirements (pyproject.toml) allow and that can be
installed with them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from importlib.metadata import version as version_of
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

__all__ = ["allowed_versions", "check_version", "main"]

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("tests/federated/flower",)


def allowed_versions() -> list[str]:
    """The versions that pyproject.toml allows and the index has, the lowest first."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = [Requirement(text) for text in table["optional-dependencies"]["flower"]]
    [allowed] = [need.specifier for need in needs if need.name == "flwr"]
    command = [sys.executable, "-m", "pip", "index", "versions", "flwr"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    listed = shown.partition("Available versions:")[2].partition("\n")[0]
    known = sorted(Version(text.strip()) for text in listed.split(","))
    return [str(version) for version in known if version in allowed]


def check_version(version: str, tests: tuple[str, ...] = TESTS) -> tuple[bool | None, str]:
    """Install one version in an environment of its own and run the Flower tests in it.

    Returns:
        Whether all tests passed (None: it cannot be installed), and what was printed last.
    """
    with tempfile.TemporaryDirectory(prefix="flwr-") as folder:
        target = Path(folder)
        venv.create(target, with_pip=True)
        python = str(target / "bin" / "python")
        # What Flower needs and we do: the versions that our tests run with.
        shared = [f"{name}=={version_of(name)}" for name in ("cryptography", "typer", "click")]
        install = [python, "-m", "pip", "install", "-q", f"flwr=={version}", *shared]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            return None, done.stderr[-500:]
        [packages] = (target / "lib").glob("python*/site-packages")
        # After this environment's own packages, so that those of Flower win.
        others = [ROOT / "src", sysconfig.get_path("purelib"), *_added_folders()]
        (packages / "others.pth").write_text("".join(f"{path}\n" for path in others))
        environment = {**os.environ, "PATH": f"{target / 'bin'}:{os.environ['PATH']}"}
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        return done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def _added_folders() -> list[str]:
    """Folders of packages that path files of this environment add."""
    return [entry for entry in sys.path if entry.endswith("-packages")]


def main(arguments: list[str] | None = None) -> int:
    """Check the versions; 1 if a test failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("versions", nargs="*", help="by default both ends of the range")
    given = parser.parse_args(arguments).versions
    failed = False
    for candidates in [[version] for version in given] or _both_ends():
        for version in candidates:
            passed, shown = check_version(version)
            word = {True: "passed", False: "FAILED", None: "cannot be installed here"}[passed]
            summary = shown.strip().splitlines()[-1] if shown.strip() else ""
            print(f"flwr {version}: {word}: {shown if passed is False else summary}", flush=True)
            failed |= passed is False
            if passed is not None:
                break
    return int(failed)


def _both_ends() -> list[list[str]]:
    """Versions to try from the lowest upwards, and from the newest downwards."""
    versions = allowed_versions()
    return [versions, versions[::-1]]


if __name__ == "__main__":
    sys.exit(main())

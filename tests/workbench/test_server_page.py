"""The commands of the page on servers, run as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blindsight.cli.main import app as command

PAGE = Path(__file__).parents[2] / "docs" / "tasks" / "server.md"


def _lines(page: Path) -> list[str]:
    """The lines of the blocks of commands, whose fence names no language, in the numbered steps:
    the verbs' summaries below them repeat commands.
    """
    lines, fence = [], None
    steps, _, _ = page.read_text().partition("\n## `")
    for line in steps.splitlines():
        if line.startswith("```"):
            fence = line if fence is None else None
        elif fence == "```" and line.strip():
            lines.append(line)
    return lines


def test_the_commands_of_the_servers_page_run_as_they_stand(
    stocked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "home" / ".local" / "state" / "blindsight" / "workbench"
    state.parent.mkdir(parents=True)
    shutil.copytree(stocked, state)
    state.chmod(0o700)
    about = next((state / "vaults").glob("*/about.json"))
    release = re.search(r'"id": "([0-9a-f]{12})",\s*"kind": "search"', about.read_text())
    assert release is not None
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("DATASET", about.parent.name)
    monkeypatch.setenv("RELEASE", release[1])
    monkeypatch.chdir(tmp_path)
    ran = []
    for line in _lines(PAGE):
        words = shlex.split(os.path.expandvars(line), comments=True)
        # Starting a server and installing one are walked by tests of their own.
        starts = words[1:2] == ["serve"] and words[2:3] != ["key"]
        if words[0] != "blindsight" or starts:
            continue
        for path, own in (
            ("/tmp/drill", tmp_path / "drill"),
            ("/var/lib/blindsight/workbench", state),
        ):
            words = [word.replace(path, str(own)) for word in words]
        done = CliRunner().invoke(command, words[1:])
        assert done.exit_code == 0, (line, done.output, done.exception)
        ran.append(words[1])
    assert ran.count("workbench") >= 10
    assert ran.count("serve") == 3

"""`blindsight serve key`: keys from the command line; and what is written into the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from blindsight.cli.main import app as command
from blindsight.core.errors import InvalidParameter
from workbench.asgi import Client


def test_keys_are_made_listed_and_revoked(tmp_path: Path) -> None:
    runner, where = CliRunner(), ["--state", str(tmp_path)]
    made = runner.invoke(
        command, ["serve", "key", "add", "ann", "--role", "analyst", "--json", *where]
    )
    key = json.loads(made.stdout)["key"]
    assert len(key) > 40
    listed = runner.invoke(command, ["serve", "key", "list", "--json", *where])
    assert json.loads(listed.stdout)["keys"][0]["role"] == "analyst"
    assert key not in listed.stdout
    again = runner.invoke(command, ["serve", "key", "add", "ann", *where])
    assert isinstance(again.exception, InvalidParameter)
    assert runner.invoke(command, ["serve", "key", "revoke", "ann", *where]).exit_code == 0
    wrong = runner.invoke(command, ["serve", "key", "add", "bob", "--role", "king", *where])
    assert isinstance(wrong.exception, InvalidParameter)


def test_neither_secrets_nor_pixels_are_logged(
    make: Callable[..., Any], stocked: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = make(state=stocked, keys="required")
    key = app.state.workbench.keys.make("ann", "owner")
    client = Client(app, Authorization=f"Bearer {key}")
    dataset = app.state.workbench.datasets.listed()[0]
    photo = app.state.workbench.datasets.photos(dataset)[0].id
    with caplog.at_level(logging.DEBUG, logger="blindsight"):
        client.post(f"/api/search/{dataset.id}/photo/{photo}?rerank=true")
        client.get("/api/jobs/0123456789abcdef")
        client.post(
            f"/api/search/{dataset.id}/upload",
            content=b"PIXELS",
            headers={"content-type": "image/png"},
        )
        client.get("/search", headers={"Cookie": "blindsight_session_8731=hush"})
    assert "POST /api/search/{dataset}/photo/{photo} 200" in caplog.text
    for secret in (
        key,
        photo,
        dataset.id,
        dataset.name,
        "rerank",
        "0123456789abcdef",
        "PIXELS",
        "hush",
        "ann",
    ):
        assert secret not in caplog.text

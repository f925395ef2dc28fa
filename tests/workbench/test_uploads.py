"""Images from outside: limits hold, bombs do nothing, metadata stay behind, the content type must
be true.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from benchmarks.workbench.hostile_images import BOMBS, mutations
from blindsight.workbench import WorkbenchSettings, create_app
from blindsight.workbench.infra.guard import Metrics
from blindsight.workbench.infra.problems import Problem
from blindsight.workbench.infra.uploads import Decoders
from workbench.asgi import Client, run

MEMORY = 512 << 20


def png(size: tuple[int, int] = (32, 32), kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)).save(
        buffer, kind, **options
    )
    return buffer.getvalue()


def peak(process: int) -> int:
    line = next(
        x
        for x in Path(f"/proc/{process}/status").read_text().splitlines()
        if x.startswith("VmPeak")
    )
    return int(line.split()[1]) * 1024


@pytest.fixture(scope="module")
def decoders() -> Any:
    found = Decoders(WorkbenchSettings(), Metrics(), workers=1)
    yield found
    run(found.close())


@pytest.fixture(scope="module")
def patient() -> Any:
    """A decoder that may take a minute: what must be read is read on a busy machine, too."""
    found = Decoders(WorkbenchSettings(upload_seconds=60.0), Metrics(), workers=1)
    yield found
    run(found.close())


def outcome(decoders: Decoders, data: bytes) -> tuple[str, float]:
    start = time.perf_counter()
    try:
        run(decoders.pixels(data))
        return "read", time.perf_counter() - start
    except Problem as problem:
        return problem.code, time.perf_counter() - start


def next_is_read(decoders: Decoders) -> bool:
    """Whether an image is read, for which a busy machine may take its time."""
    readers = list(decoders._all[0]._readers.values())
    limits = [reader.seconds for reader in readers]
    try:
        for reader in readers:
            reader.seconds = 600.0
        return outcome(decoders, png())[0] == "read"
    finally:
        for reader, seconds in zip(readers, limits, strict=True):
            reader.seconds = seconds


def test_hundreds_of_mutated_images_do_no_harm(decoders: Decoders) -> None:
    counts: dict[str, int] = {}
    for data in mutations(300, seed=5):
        word, seconds = outcome(decoders, data)
        counts[word] = counts.get(word, 0) + 1
        assert seconds < 600  # the worker itself has 5 s; the machine may be busy
    assert set(counts) == {"read", "refused_image"}
    assert next_is_read(decoders)  # by a process that runs, also if the last image ended one
    assert max(peak(process) for process in decoders.processes()) <= MEMORY


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_its_limits(decoders: Decoders, name: str) -> None:
    word, _ = outcome(decoders, BOMBS[name]())
    assert word in {"refused_image"} | ({"read"} if "text" in name or "scans" in name else set())
    assert all(peak(process) <= MEMORY for process in decoders.processes())
    assert next_is_read(decoders)


def test_slow_work_is_ended_and_the_next_image_is_read() -> None:
    # In a millisecond so much does not even get through the pipe.
    decoders = Decoders(WorkbenchSettings(upload_seconds=0.001), Metrics(), workers=1)
    large = png((4000, 4000), compress_level=0)
    assert outcome(decoders, large)[0] == "refused_image"
    for reader in decoders._all[0]._readers.values():
        reader.seconds = 600.0
    assert outcome(decoders, png())[0] == "read"
    run(decoders.close())


@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_a_photo_of_24_million_pixels_is_read(patient: Decoders, options: Any) -> None:
    rough = np.random.default_rng(0).integers(0, 255, (400, 600, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(rough).resize((6000, 4000)).save(buffer, "JPEG", quality=90, **options)
    assert run(patient.pixels(buffer.getvalue())).shape == (341, 512, 3)
    assert all(peak(process) <= MEMORY for process in patient.processes())


def test_a_photo_is_turned_as_its_camera_says(patient: Decoders) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    pixels = np.zeros((600, 900, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", exif=exif)
    assert run(patient.pixels(buffer.getvalue())).shape == (512, 341, 3)


INSIDE = """
import json, os, resource, socket, subprocess, sys
sys.path[:] = json.loads(sys.argv[1])
from blindsight.core.sandbox import confine
walls = confine(1 << 30, 5.0)
def refused(attempt):
    try:
        attempt()
    except OSError as error:
        return error.errno in (1, 13)
    return False
print(json.dumps({
    "walls": walls,
    "environment": sorted(set(os.environ) - {"LC_CTYPE"}),
    "read": refused(lambda: open("/etc/hostname")),
    "list": refused(lambda: os.listdir("/")),
    "write": refused(lambda: open("/tmp/x", "w")),
    "socket": refused(socket.socket),
    "local socket": refused(socket.socketpair),
    "program": refused(lambda: os.execv("/bin/true", ["true"])),
    "child": refused(os.fork),
    "signal": refused(lambda: os.kill(os.getppid(), 0)),
    "mode": refused(lambda: os.chmod(sys.argv[2], 0o777)),
    "times": refused(lambda: os.utime(sys.argv[2], (0, 0))),
    "limits of others": refused(lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)),
    "priority of others": refused(lambda: os.getpriority(os.PRIO_PROCESS, os.getppid())),
    "which files there are": refused(lambda: os.stat(sys.argv[2])),
    "memory for others": refused(lambda: os.memfd_create("x")),
    "pipes": refused(os.pipe),
}))
"""


def test_the_process_that_opens_images_reaches_nothing(tmp_path: Path) -> None:
    secret = tmp_path / "ledger.db"
    secret.touch(0o600)
    command = [sys.executable, "-I", "-c", INSIDE, json.dumps(sys.path), str(secret)]
    done = subprocess.run(command, capture_output=True, text=True, env={}, check=True)
    found = json.loads(done.stdout)
    walls = set(found.pop("walls"))
    if not {"landlock", "seccomp"} <= walls:
        pytest.skip(f"this kernel gives {sorted(walls)} only")
    assert found.pop("environment") == []
    assert all(found.values()), found


def test_the_decoders_say_what_confines_them_and_inherit_no_environment(
    decoders: Decoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLINDSIGHT_WORKBENCH_DATABASE", "postgresql://u:hush@h/d")
    assert "limits" in run(decoders.walls())
    for process in decoders.processes():
        assert b"hush" not in Path(f"/proc/{process}/environ").read_bytes()


def test_metadata_stay_behind(patient: Decoders) -> None:
    exif = Image.Exif()
    exif[0x010E] = "Ann's flat"
    pixels = run(patient.pixels(png(kind="JPEG", exif=exif)))
    assert b"Ann" not in pixels.tobytes()
    assert pixels.shape == (32, 32)


@pytest.fixture(scope="module")
def app(stock: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A workbench with a search index, for all who only send."""
    state = tmp_path_factory.mktemp("uploads") / "state"
    shutil.copytree(stock, state)
    made = create_app(WorkbenchSettings(state=state, keys="off", upload_seconds=60.0))
    yield made
    run(made.state.workbench.decoders.close())
    made.state.workbench.budgets.close()
    made.state.workbench.database.close()


def sent(app: Any, content: bytes, kind: str) -> httpx.Response:
    """An image sent to the page Search."""
    number = app.state.workbench.datasets.listed()[0].id
    return Client(app).post(
        f"/api/search/{number}/upload", content=content, headers={"content-type": kind}
    )


@pytest.mark.parametrize(
    ("kind", "data", "status"),
    [
        ("image/png", png(), 200),
        ("application/octet-stream", png(), 200),
        ("image/jpeg", png(), 415),
        ("text/html", png(), 415),
        ("", png(), 415),
        ("image/png", b"<html>", 422),
        ("image/png", b"", 422),
        ("image/svg+xml", b"<svg/>", 415),
    ],
)
def test_the_content_type_must_be_true(app: Any, kind: str, data: bytes, status: int) -> None:
    answer = sent(app, data, kind)
    assert answer.status_code == status, answer.text


def test_an_upload_beyond_its_limits_is_refused(make: Callable[..., Any], stocked: Path) -> None:
    app = make(state=stocked, upload_bytes=5000, upload_pixels=900)
    assert sent(app, bytes(5001), "image/png").status_code == 413
    assert sent(app, png(), "image/png").status_code == 422
    run(app.state.workbench.decoders.close())


def test_a_refusal_says_the_same_of_every_image(app: Any) -> None:
    images = (b"x", png()[:60], BOMBS["a PNG of 60,000 x 60,000"]())
    assert len({sent(app, data, "application/octet-stream").text for data in images}) == 1

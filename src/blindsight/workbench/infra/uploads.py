"""Images from outside: read with a limit, looked at, and opened by a confined worker that is killed
when it is slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import sys
import tempfile
import zipfile
import zlib
from collections.abc import AsyncIterator
from typing import IO, Any

import numpy as np
from fastapi import Request
from numpy.typing import NDArray

from blindsight.core.errors import HostileFile
from blindsight.data.limits import check_packing
from blindsight.workbench.infra.decoder import LARGEST_SIDE, sniffed
from blindsight.workbench.infra.problems import Problem
from blindsight.workbench.infra.settings import Settings
from blindsight.workbench.infra.traffic import Metrics

__all__ = ["UPLOAD", "Decoders", "read_drop", "read_upload"]

_TYPES = (
    "image/png",
    "image/jpeg",
    "image/webp",
    "image/gif",
    "image/bmp",
    "image/tiff",
    "application/octet-stream",
)
_LARGEST_ANSWER = LARGEST_SIDE * LARGEST_SIDE * 3
_START_SECONDS = 60.0
_SERVED = 300
# The record at the end of a zip (PKWARE's APPNOTE, 4.3.16), and the one before it in zips beyond 4
# GB or 65,535 files.
_END, _END_SIZE, _LARGE = b"PK\x05\x06", 22, b"PK\x06\x07"
_LONGEST_END = _END_SIZE + 65_535
_LONGEST_ENTRY = 512  # bytes of the list for each file, on average
_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from "
    "blindsight.workbench.infra.decoder import main; main()"
)
#: what OpenAPI says of an address that takes an image as its body.
UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in _TYPES},
    }
}


class _Slow(Exception):
    """The worker took too long or died."""


class _Worker:
    """One decoder process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.process: asyncio.subprocess.Process | None = None
        self.served = 0
        self.walls: tuple[str, ...] = ()

    async def ask(self, data: bytes) -> NDArray[np.uint8] | None:
        await self.ready()
        try:
            return await asyncio.wait_for(self._exchange(data), self.settings.upload_seconds)
        except (
            TimeoutError,
            ConnectionError,
            asyncio.IncompleteReadError,
            ValueError,
            OSError,
        ) as error:
            await self.stop()
            raise _Slow from error

    async def ready(self) -> None:
        if self.process is None or self.process.returncode is not None or self.served >= _SERVED:
            await self._start()

    async def _exchange(self, data: bytes) -> NDArray[np.uint8] | None:
        assert self.process and self.process.stdin and self.process.stdout  # noqa: S101  (started by ask)
        self.served += 1
        self.process.stdin.write(struct.pack("<I", len(data)) + data)
        await self.process.stdin.drain()
        answer = json.loads(await self.process.stdout.readline() or b"null")
        if answer is None:
            raise ConnectionError
        if not answer["ok"]:
            return None
        shape = tuple(answer["shape"])
        size = int(np.prod(shape))
        if not 1 <= size <= _LARGEST_ANSWER:
            raise ValueError("a decoder's answer must be of bounded size")
        body = await self.process.stdout.readexactly(size)
        return np.frombuffer(body, np.uint8).reshape(shape)

    async def _start(self) -> None:
        await self.stop()
        s = self.settings
        options = {
            "memory": s.upload_memory,
            "seconds": s.upload_seconds,
            "pixels": s.upload_pixels,
            "frames": s.upload_frames,
        }
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-c",
            _MAIN,
            json.dumps(options),
            json.dumps(sys.path),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            # Nothing of the workbench's environment: addresses and passwords may be in it.
            env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
            cwd="/",
            limit=_LARGEST_ANSWER + 4096,
            start_new_session=True,  # Ctrl-C is for the workbench, which then stops its workers
        )
        self.served = 0
        assert self.process.stdout  # noqa: S101  (a pipe was asked for)
        said = await asyncio.wait_for(self.process.stdout.readline(), _START_SECONDS)
        self.walls = tuple(json.loads(said or b"{}").get("walls", ()))

    async def stop(self) -> None:
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
        self.process = None


class Decoders:
    """A few workers; who comes while all are busy waits, up to a limit."""

    def __init__(
        self, settings: Settings, metrics: Metrics, *, workers: int = 2, waiting: int = 32
    ) -> None:
        self._idle = [_Worker(settings) for _ in range(workers)]
        self._all = list(self._idle)
        self._free = asyncio.Semaphore(workers)
        self._waiting, self._most = 0, waiting
        self._metrics = metrics

    async def pixels(self, data: bytes) -> NDArray[np.uint8]:
        """Pixels of an image, or `Problem("refused_image")` without a reason."""
        if sniffed(data) is None:
            self._metrics.count("images_refused")
            raise Problem("refused_image")
        if self._waiting >= self._most:
            raise Problem("busy")
        self._waiting += 1
        try:
            async with self._free:
                worker = self._idle.pop()
                try:
                    found = await worker.ask(data)
                except _Slow:
                    self._metrics.count("decoders_ended")
                    found = None
                finally:
                    self._idle.append(worker)
        finally:
            self._waiting -= 1
        if found is None:
            self._metrics.count("images_refused")
            raise Problem("refused_image")
        self._metrics.count("images_read")
        return found

    async def walls(self) -> tuple[str, ...]:
        """What confines the workers; none where they cannot be started."""
        async with self._free:
            worker = self._idle.pop()
            try:
                await worker.ready()
                return worker.walls
            finally:
                self._idle.append(worker)

    def known_walls(self) -> tuple[str, ...]:
        """What confines the workers, as far as one has been started."""
        return next((worker.walls for worker in self._all if worker.walls), ())

    def processes(self) -> list[int]:
        """The workers' process ids."""
        return [
            w.process.pid
            for w in self._all
            if w.process is not None and w.process.returncode is None
        ]

    async def close(self) -> None:
        """End all workers."""
        for worker in self._all:
            await worker.stop()


async def read_upload(request: Request, decoders: Decoders) -> NDArray[np.uint8]:
    """The body of a request as pixels; the declared type must be an image's and fit what the bytes
    are.
    """
    declared = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if declared not in _TYPES:
        raise Problem("wrong_type")
    data = await request.body()
    if declared != "application/octet-stream" and sniffed(data) not in (None, declared):
        raise Problem("wrong_type")
    return await decoders.pixels(data)


async def read_drop(
    request: Request, decoders: Decoders, settings: Settings, name: str
) -> AsyncIterator[tuple[str, NDArray[np.uint8] | None]]:
    """The photos of a request's body, one image or a zip of them, each with its name; None for what
    is no photo.

    A zip is bounded before and while it is unpacked: its list, files, bytes each, bytes in all. Its
    paths are never places, and nothing of it is read on the event loop.
    """
    with tempfile.TemporaryFile() as spool:
        async for piece in request.stream():
            await asyncio.to_thread(spool.write, piece)
        spool.seek(0)
        if spool.read(4) != b"PK\x03\x04":
            spool.seek(0)
            data = spool.read(settings.upload_bytes + 1)
            yield name, await _or_none(decoders, data, settings)
            return
        packed = await asyncio.to_thread(_listed, spool, settings.drop_files)
        left = 4 * settings.drop_bytes
        for entry in packed.infolist():
            if entry.is_dir():
                continue
            most = min(settings.upload_bytes, left)
            content = await asyncio.to_thread(_unpacked, packed, entry, most)
            # What was too large was unpacked as far as that, and counts as much.
            left -= most if content is None else len(content)
            if left <= 0:
                raise Problem("too_large")
            yield (
                entry.filename[:400],
                None if content is None else await _or_none(decoders, content, settings),
            )


def _listed(spool: IO[bytes], most: int) -> zipfile.ZipFile:
    """A zip's list of files.

    Its length is read first: zipfile would take in all of it, whatever it says of itself.
    """
    end = spool.seek(0, 2)
    spool.seek(max(0, end - _LONGEST_END))
    tail = spool.read()
    place = tail.rfind(_END)
    if place < 0 or len(tail) - place < _END_SIZE:
        raise Problem("refused_image")
    length = struct.unpack_from("<I", tail, place + 12)[0]
    if length > most * _LONGEST_ENTRY or tail[max(0, place - 20) : place].startswith(_LARGE):
        raise Problem("too_large")
    try:
        packed = zipfile.ZipFile(spool)
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
        raise Problem("refused_image") from None
    if sum(not entry.is_dir() for entry in packed.infolist()) > most:
        raise Problem("too_large")
    return packed


def _unpacked(packed: zipfile.ZipFile, entry: zipfile.ZipInfo, most: int) -> bytes | None:
    """One file of a zip, or None if it is encrypted, broken or larger than it may be, whatever its
    header says.
    """
    try:
        check_packing(entry)
        with packed.open(entry) as stream:
            data = stream.read(most + 1)
        return data if len(data) <= most else None
    except (
        HostileFile,
        zipfile.BadZipFile,
        RuntimeError,
        OSError,
        ValueError,
        EOFError,
        zlib.error,
    ):
        return None  # NotImplementedError is a RuntimeError


async def _or_none(decoders: Decoders, data: bytes, settings: Settings) -> NDArray[np.uint8] | None:
    if len(data) > settings.upload_bytes:
        return None
    try:
        return await decoders.pixels(data)
    except Problem as problem:
        if problem.code == "busy":
            raise
        return None

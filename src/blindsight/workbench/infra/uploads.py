"""Uploaded images: read with a size limit and decoded by confined processes (`data.confined`)."""

from __future__ import annotations

import asyncio
import struct
import tempfile
import zipfile
from collections.abc import AsyncIterator
from typing import IO, Any

import numpy as np
from fastapi import Request
from numpy.typing import NDArray

from blindsight.app.hosting import ImageDecoder, file_kind, unpack_entry
from blindsight.workbench.infra.guard import Metrics
from blindsight.workbench.infra.problems import Problem
from blindsight.workbench.infra.settings import WorkbenchSettings

__all__ = ["LARGEST_SIDE", "UPLOAD", "Decoders", "read_drop", "read_upload", "sniffed"]

_TYPES = (
    "image/png",
    "image/jpeg",
    "image/webp",
    "image/gif",
    "image/bmp",
    "image/tiff",
    "image/avif",
    "image/heic",
    "image/jp2",
    "application/octet-stream",
)
LARGEST_SIDE = 512
_MAGIC = (
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", "image/jp2"),
)
# The record at the end of a zip (PKWARE's APPNOTE, 4.3.16), and the one before it in zips of more
# than 4 GB or 65,535 files.
_END, _END_SIZE, _LARGE = b"PK\x05\x06", 22, b"PK\x06\x07"
_LONGEST_END = _END_SIZE + 65_535
_LONGEST_ENTRY = 512  # bytes of the list for each file, on average
#: The OpenAPI description of a request whose body is an image.
UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in _TYPES},
    }
}


def sniffed(data: bytes) -> str | None:
    """Return the image type by the first bytes of a file; None if it is unknown."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    if file_kind(data) == "heif":
        return "image/heic"
    if data[4:12] in (b"ftypavif", b"ftypavis"):
        return "image/avif"
    return next((kind for magic, kind in _MAGIC if data.startswith(magic)), None)


class Decoders:
    """A pool of confined decoders.

    Parameters:
        settings: the limits of an image.
        metrics: counts images that were read or refused.
        workers: the number of decoders.
        waiting: how many images may be decoded or wait at once.
    """

    def __init__(
        self, settings: WorkbenchSettings, metrics: Metrics, *, workers: int = 2, waiting: int = 32
    ) -> None:
        self._idle = [
            ImageDecoder(
                seconds=settings.upload_seconds,
                pixels=settings.upload_pixels,
                image_bytes=settings.upload_bytes,
                frames=settings.upload_frames,
                memory=settings.upload_memory,
                side=LARGEST_SIDE,
            )
            for _ in range(workers)
        ]
        self._all = list(self._idle)
        self._free = asyncio.Semaphore(workers)
        self._waiting, self._most = 0, waiting
        self._metrics = metrics

    async def pixels(self, data: bytes) -> NDArray[np.uint8]:
        """Decode an image.

        Raises:
            Problem: "refused_image", without a reason, if it cannot be decoded; "busy", if too
                many wait.
        """
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
                    pixels, ended = await asyncio.to_thread(worker.decode, data)
                finally:
                    self._idle.append(worker)
                if ended:
                    self._metrics.count("decoders_ended")
        finally:
            self._waiting -= 1
        if pixels is None:
            self._metrics.count("images_refused")
            raise Problem("refused_image")
        self._metrics.count("images_read")
        return pixels

    async def walls(self) -> tuple[str, ...]:
        """Start a worker, and return what confines it; nothing if it cannot be started."""
        async with self._free:
            worker = self._idle.pop()
            try:
                return await asyncio.to_thread(worker.start)
            finally:
                self._idle.append(worker)

    def known_walls(self) -> tuple[str, ...]:
        """Return what confines the workers, if one was started."""
        return next((worker.walls for worker in self._all if worker.walls), ())

    def processes(self) -> list[int]:
        """Return the process ids of all workers."""
        return [process for worker in self._all for process in worker.processes]

    async def close(self) -> None:
        for worker in self._all:
            await asyncio.to_thread(worker.close)


async def read_upload(request: Request, decoders: Decoders) -> NDArray[np.uint8]:
    """Decode the image in a request's body, whose declared type must fit its bytes."""
    declared = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    declared = {"image/heif": "image/heic"}.get(declared, declared)
    if declared not in _TYPES:
        raise Problem("wrong_type")
    data = await request.body()
    if declared != "application/octet-stream" and sniffed(data) not in (None, declared):
        raise Problem("wrong_type")
    return await decoders.pixels(data)


async def read_drop(
    request: Request, decoders: Decoders, settings: WorkbenchSettings, name: str
) -> AsyncIterator[tuple[str, NDArray[np.uint8] | None]]:
    """Yield the name and the pixels of each file in a request's body: one image, or a zip.

    The pixels are None for a file that is not a photo. Limits on the zip's list, its files, the
    bytes of each and of all hold before and while it is unpacked. Its paths are only names, and
    nothing of it is read on the event loop.
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
        remaining = 4 * settings.drop_bytes
        for entry in packed.infolist():
            if entry.is_dir():
                continue
            most = min(settings.upload_bytes, remaining)
            content = await asyncio.to_thread(unpack_entry, packed, entry, most)
            # A file that is too large was unpacked up to the limit, and counts as much.
            remaining -= most if content is None else len(content)
            if remaining <= 0:
                raise Problem("too_large")
            yield (
                entry.filename[:400],
                None if content is None else await _or_none(decoders, content, settings),
            )


def _listed(spool: IO[bytes], most: int) -> zipfile.ZipFile:
    """Open a zip after checking the length of its list, which `zipfile` reads without a limit."""
    end = spool.seek(0, 2)
    spool.seek(max(0, end - _LONGEST_END))
    tail = spool.read()
    start = tail.rfind(_END)
    if start < 0 or len(tail) - start < _END_SIZE:
        raise Problem("refused_image")
    length = struct.unpack_from("<I", tail, start + 12)[0]
    if length > most * _LONGEST_ENTRY or tail[max(0, start - 20) : start].startswith(_LARGE):
        raise Problem("too_large")
    try:
        packed = zipfile.ZipFile(spool)
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
        raise Problem("refused_image") from None
    if sum(not entry.is_dir() for entry in packed.infolist()) > most:
        raise Problem("too_large")
    return packed


async def _or_none(
    decoders: Decoders, data: bytes, settings: WorkbenchSettings
) -> NDArray[np.uint8] | None:
    if len(data) > settings.upload_bytes:
        return None
    try:
        return await decoders.pixels(data)
    except Problem as problem:
        if problem.code == "busy":
            raise
        return None

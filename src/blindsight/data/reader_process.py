"""The process that decodes image files: confined by the kernel, without files or network.

The program imports the decoders, confines itself (`core.sandbox`) and serves requests from a socket
until the other end is closed.

Wire format. A request is `REQUEST` followed by the bytes of the file. An answer is `ANSWER`: a
code, the shape of the image, and the length of a text that follows. Pixels are at the start of the
shared memory; where the system has none, they follow the answer.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from blindsight.core.errors import BlindsightError
from blindsight.core.sandbox import confine
from blindsight.data.limits import Limits
from blindsight.data.reading import decode_here, prepare_heif, prepare_pillow

__all__ = [
    "ANSWER",
    "DECODED",
    "KINDS",
    "READY",
    "REFUSED",
    "REQUEST",
    "main",
    "read_exactly",
    "write_all",
]

#: bytes of the file, most pixels, most bytes, smallest side for a reduced decoding (0: none),
#: most frames (0: no bound), whether the file is a camera's raw file
REQUEST = struct.Struct("<QQQII?")
#: a code, height, width and channels of the image, bytes of the text
ANSWER = struct.Struct("<BIIII")
READY, DECODED, REFUSED = range(3)
_PIECE = 1 << 20
_LONGEST_REASON = 300


def read_exactly(descriptor: int, size: int) -> bytearray | None:
    """Read `size` bytes from a descriptor, or return None where it ends before that."""
    buffer = bytearray(size)
    view, done = memoryview(buffer), 0
    while done < size:
        count = os.readv(descriptor, [view[done : done + _PIECE]])
        if count == 0:
            return None
        done += count
    return buffer


def write_all(descriptor: int, *parts: bytes | memoryview) -> None:
    """Write all parts to a descriptor, the first ones in one call where they are small."""
    views = [memoryview(part) for part in parts]
    while views:
        written = os.writev(descriptor, views)
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if views:
            views[0] = views[0][written:]


def _prepare_pictures() -> None:
    """Import Pillow's decoders: nothing can be imported behind the walls."""
    import io

    from PIL import Image

    prepare_pillow()
    for file_format in ("PNG", "JPEG", "TIFF", "WEBP", "GIF", "BMP", "PPM"):
        sample = io.BytesIO()
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(sample, file_format)
        decode_here(sample.getvalue())


def _prepare_dicom() -> None:
    """Import pydicom and the decoders of compressed pixel data."""
    from blindsight.data.formats.dicom import prepare_dicom

    _prepare_pictures()
    prepare_dicom()


def _prepare_heif() -> None:
    """Import pillow-heif beside Pillow's own decoders."""
    _prepare_pictures()
    prepare_heif()


#: what a reader must import before it is confined, by the kind of files it reads
KINDS: dict[str, Callable[[], None]] = {
    "pictures": _prepare_pictures,
    "dicom": _prepare_dicom,
    "heif": _prepare_heif,
}


def main() -> None:
    """Serve a reader until its end of the socket is closed.

    The arguments are a JSON object: kind, socket, memory (descriptor of the shared memory or -1),
    capacity, address_space and seconds.
    """
    options: dict[str, Any] = json.loads(sys.argv[1])
    KINDS[options["kind"]]()
    shared = None
    if options["memory"] >= 0:
        shared = mmap.mmap(options["memory"], options["capacity"])
    # libde265 decodes in threads of its own and ends the process where it cannot start one.
    threads = options["kind"] == "heif"
    walls = confine(options["address_space"], options["seconds"], threads=threads)
    _answer(options["socket"], READY, text=json.dumps(walls))
    while (request := read_exactly(options["socket"], REQUEST.size)) is not None:
        size, pixels, largest, at_least, frames, raw = REQUEST.unpack(request)
        data = read_exactly(options["socket"], size)
        if data is None:
            return
        limits = Limits(pixels=pixels, image_bytes=largest, frames=frames)
        _serve(bytes(data), limits, at_least or None, raw, shared, options["socket"])


def _serve(
    data: bytes,
    limits: Limits,
    at_least: int | None,
    raw: bool,
    shared: mmap.mmap | None,
    socket: int,
) -> None:

    try:
        image = decode_here(data, name="{name}", limits=limits, at_least=at_least, raw=raw)
    except BlindsightError as error:
        _answer(socket, REFUSED, text=str(error)[:_LONGEST_REASON])
        return
    except MemoryError:
        _answer(socket, REFUSED, text="{name} needs more memory than one image may take.")
        return
    shape = (*image.shape, 1)[:3]
    if shared is None:
        _answer(socket, DECODED, shape)
        write_all(socket, image.tobytes())
    elif image.nbytes > len(shared):
        _answer(socket, REFUSED, text="{name} has more pixels than one image may have.")
    else:
        np.frombuffer(shared, np.uint8, image.size).reshape(image.shape)[:] = image
        _answer(socket, DECODED, shape)


def _answer(socket: int, code: int, shape: tuple[int, ...] = (0, 0, 0), text: str = "") -> None:
    encoded = text.encode()
    write_all(socket, ANSWER.pack(code, *shape, len(encoded)) + encoded)


if __name__ == "__main__":
    main()

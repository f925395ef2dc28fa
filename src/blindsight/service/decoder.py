"""The process that opens images from outside: little memory, no files, no time to waste; pixels in, pixels out.

It reads a length and that many bytes from standard input, and answers with a line of JSON and, if the image was good,
its pixels: grey or RGB, at most 512 on a side, without metadata.
"""

from __future__ import annotations

import json
import resource
import struct
import sys
from typing import Any, BinaryIO

__all__ = ["LARGEST_SIDE", "confine", "decode", "main", "sniffed"]

LARGEST_SIDE = 512
_MAGIC = (
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
)


def sniffed(data: bytes) -> str | None:
    """The image type that the first bytes speak of, whatever a header says."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _MAGIC if data.startswith(magic)), None)


def confine(memory: int, seconds: float) -> None:
    """Limits that the kernel keeps: address space, no new files, no core dump; processor time as a last resort."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
    # A worker serves many images; the parent keeps the time of each, this only ends a runaway.
    hard = int(seconds * 400) + 60
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))


def decode(data: bytes, *, pixels: int, frames: int) -> Any:
    """Checked pixels of one image, shrunk to a bounded size."""
    import io

    import numpy as np
    from PIL import Image

    from blindsight.core.errors import HostileFile
    from blindsight.data.limits import Limits
    from blindsight.data.reading import FORMATS, decode_image

    if sniffed(data) is None:
        raise HostileFile("not an image")
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        if image.width * image.height > pixels:
            raise HostileFile("too many pixels")
        if getattr(image, "is_animated", False):
            try:
                image.seek(frames)
            except EOFError:
                pass
            else:
                raise HostileFile("too many frames")
    found = decode_image(data, limits=Limits(pixels=pixels, image_bytes=len(data)))
    if max(found.shape[:2]) > LARGEST_SIDE:
        small = Image.fromarray(found)
        small.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
        found = np.asarray(small)
    return np.ascontiguousarray(found)


def main() -> None:
    """Serve until standard input ends."""
    options = json.loads(sys.argv[1])
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    # Everything is imported before the limit, and one good image is opened, so that the limit is the image's own.
    import io

    import numpy as np
    from PIL import Image

    for kind in ("PNG", "JPEG", "WEBP", "GIF"):
        sample = io.BytesIO()
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(sample, kind)
        decode(sample.getvalue(), pixels=64, frames=1)
    confine(options["memory"], options["seconds"])
    _say(sink, {"ready": True})
    while header := source.read(4):
        size = struct.unpack("<I", header)[0]
        _serve(source.read(size), options, sink)


def _serve(data: bytes, options: dict[str, Any], sink: BinaryIO) -> None:
    try:
        found = decode(data, pixels=options["pixels"], frames=options["frames"])
    except (Exception, MemoryError):
        # Why it was refused would tell about the image; that it was refused is enough.
        _say(sink, {"ok": False})
        return
    _say(sink, {"ok": True, "shape": found.shape}, found.tobytes())


def _say(sink: BinaryIO, fields: dict[str, Any], body: bytes = b"") -> None:
    sink.write(json.dumps(fields).encode() + b"\n" + body)
    sink.flush()


if __name__ == "__main__":
    main()

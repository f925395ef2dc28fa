"""The process that opens images from outside: little memory, no files, no network; pixels in,
pixels out.

It reads a length and that many bytes from standard input, and answers with a line of JSON and, if
the image was good, its pixels: grey or RGB, at most 512 on a side, without metadata.
"""

from __future__ import annotations

import json
import struct
import sys
from typing import Any, BinaryIO

from blindsight.core.sandbox import confine

__all__ = ["LARGEST_SIDE", "decode", "main", "sniffed"]

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


def decode(data: bytes, *, pixels: int, frames: int) -> Any:
    """Checked pixels of one image, shrunk to a bounded size."""
    import io

    import numpy as np
    from PIL import Image, ImageOps

    from blindsight.core.errors import HostileFile
    from blindsight.data.limits import Limits
    from blindsight.data.reading import FORMATS
    from blindsight.data.reading import decode_here as decode_image

    if sniffed(data) is None:
        raise HostileFile("not an image")
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        if not 1 <= image.width * image.height <= pixels:
            raise HostileFile("no pixels, or too many")
        if getattr(image, "is_animated", False):
            try:
                image.seek(frames)
            except EOFError:
                pass
            else:
                raise HostileFile("too many frames")
        if (
            image.mode not in ("L", "RGB")
            or max(image.size) <= LARGEST_SIDE
            or getattr(image, "n_frames", 1) > 1
        ):
            found = decode_image(data, limits=Limits(pixels=pixels, image_bytes=len(data)))
            small = Image.fromarray(found)
            small.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
            return np.ascontiguousarray(small)
        # A photo straight from a camera: JPEG decodes at a fraction of its size, and no second copy
        # is made of it.
        image.draft(None, (LARGEST_SIDE, LARGEST_SIDE))
        image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
        return np.ascontiguousarray(ImageOps.exif_transpose(image))


def main() -> None:
    """Serve until standard input ends."""
    options = json.loads(sys.argv[1])
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    # Everything is imported before the limit, and one good image is opened, so that the limit is
    # the image's own.
    import io

    import numpy as np
    from PIL import Image

    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        sample = io.BytesIO()
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(sample, kind)
        decode(sample.getvalue(), pixels=64, frames=1)
    walls = confine(options["memory"], options["seconds"])
    _say(sink, {"ready": True, "walls": walls})
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

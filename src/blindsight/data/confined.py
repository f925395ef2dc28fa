"""Decoding of image files in a confined process.

Every image file, from a folder, an upload or a worker on another machine, is hostile until it has
been decoded, and decoders are large programs in C and C++: six of 1,165 mutated DICOM files end the
process that opens them. So no file is decoded in this process. `ConfinedReader` sends the bytes to
a process without files, network or further programs (`main`), and receives pixels through shared
memory. A file that ends the process twice is refused by name like any other damaged file, and the
next file gets a new process.

That process imports the decoders, confines itself (`core.sandbox`) and serves requests from a
socket until the other end is closed. Where the system has no memory that two processes share by a
descriptor (macOS, Windows), requests and answers go through its standard input and output.

Wire format. A request is `REQUEST` followed by the bytes of the file. An answer is `ANSWER`: a
code, the shape of the image, and the length of a text that follows. Pixels are at the start of the
shared memory; where there is none, they follow the answer.
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import optional_module
from blindsight.core.errors import BlindsightError, HostileFile, MissingDependency
from blindsight.core.sandbox import confine
from blindsight.data.limits import LIMITS, Limits, kind_of
from blindsight.data.reading import (
    PACKAGES,
    RAW_SUFFIXES,
    decode_here,
    missing_extra,
    prepare_heif,
    prepare_pillow,
)

__all__ = [
    "ANSWER",
    "DECODED",
    "KINDS",
    "READY",
    "REFUSED",
    "REQUEST",
    "ConfinedReader",
    "decode_image",
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
        if hasattr(os, "readv"):
            count = os.readv(descriptor, [view[done : done + _PIECE]])
        else:  # Windows
            piece = os.read(descriptor, min(size - done, _PIECE))
            count = len(piece)
            view[done : done + count] = piece
        if count == 0:
            return None
        done += count
    return buffer


def write_all(descriptor: int, *parts: bytes | memoryview) -> None:
    """Write all parts to a descriptor, the first ones in one call where they are small."""
    views = [memoryview(part) for part in parts]
    while views:
        written = (
            os.writev(descriptor, views)
            if hasattr(os, "writev")
            else os.write(descriptor, views[0][:_PIECE])
        )
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if views:
            views[0] = views[0][written:]


def _prepare_pictures() -> None:
    """Import Pillow's decoders, because a confined process cannot import anything."""
    import io

    from PIL import Image

    prepare_pillow()
    for file_format in ("PNG", "JPEG", "TIFF", "WEBP", "GIF", "BMP", "PPM"):
        sample = io.BytesIO()
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(sample, file_format)
        decode_here(sample.getvalue())


def _prepare_dicom() -> None:
    """Import pydicom and the decoders of compressed pixel data."""
    from blindsight.data.reading import prepare_dicom

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

    The arguments are a JSON object: kind, source (descriptor of the requests), memory (descriptor
    of the shared memory or -1), capacity, address_space and seconds.
    """
    options: dict[str, Any] = json.loads(sys.argv[1])
    source = target = int(options["source"])
    shared = None
    if options["memory"] >= 0:
        shared = mmap.mmap(options["memory"], options["capacity"])
    else:
        # Answers go to standard output, and what a decoder prints is discarded.
        target = os.dup(1)
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
    KINDS[options["kind"]]()
    # libde265 decodes in threads of its own and ends the process where it cannot start one.
    threads = options["kind"] == "heif"
    protections = confine(options["address_space"], options["seconds"], threads=threads)
    _answer(target, READY, text=json.dumps(protections))
    while (request := read_exactly(source, REQUEST.size)) is not None:
        size, pixels, largest, at_least, frames, raw = REQUEST.unpack(request)
        data = read_exactly(source, size)
        if data is None:
            return
        limits = Limits(pixels=pixels, image_bytes=largest, frames=frames)
        _serve(bytes(data), limits, at_least or None, raw, shared, target)


def _serve(
    data: bytes,
    limits: Limits,
    at_least: int | None,
    raw: bool,
    shared: mmap.mmap | None,
    target: int,
) -> None:
    try:
        image = decode_here(data, name="{name}", limits=limits, at_least=at_least, raw=raw)
    except BlindsightError as error:
        _answer(target, REFUSED, text=str(error)[:_LONGEST_REASON])
        return
    except MemoryError:
        _answer(target, REFUSED, text="{name} needs more memory than one image may take.")
        return
    shape = (*image.shape, 1)[:3]
    if shared is None:
        _answer(target, DECODED, shape)
        write_all(target, image.tobytes())
    elif image.nbytes > len(shared):
        _answer(target, REFUSED, text="{name} has more pixels than one image may have.")
    else:
        np.frombuffer(shared, np.uint8, image.size).reshape(image.shape)[:] = image
        _answer(target, DECODED, shape)


def _answer(target: int, code: int, shape: tuple[int, ...] = (0, 0, 0), text: str = "") -> None:
    encoded = text.encode()
    write_all(target, ANSWER.pack(code, *shape, len(encoded)) + encoded)


_START_SECONDS = 120.0
_SECONDS = 60.0
_ADDRESS_SPACE = 4 << 30
_LONGEST_TEXT = 1 << 16
_CHANNELS = 3
# The process keeps its memory: returning the pages of every image costs more than decoding it.
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from blindsight.data.confined import main; main()"
)


class ConfinedReader:
    """Decodes image files in a process of its own, one at a time.

    The process is started with the first file and ends with this one. Threads may share a reader;
    they wait for each other. After a fork the child starts a process of its own.

    Parameters:
        kind: which decoders the process loads before it is confined.
        seconds: most seconds for one file; a file that takes longer is refused.
        address_space: most bytes of memory that the process may map.

    Examples:
        >>> import io
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("L", (4, 2), 7).save(file, "PNG")
        >>> with ConfinedReader() as reader:
        ...     reader.decode(file.getvalue(), name="four.png").shape
        (2, 4)
    """

    def __init__(
        self,
        kind: str = "pictures",
        *,
        seconds: float = _SECONDS,
        address_space: int = _ADDRESS_SPACE,
    ) -> None:
        self.kind = kind
        self.seconds = seconds
        self.address_space = address_space
        self.walls: tuple[str, ...] = ()
        self._lock = threading.Lock()
        self._owner = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._ends: tuple[int, int] | None = None  # descriptors of answers and of requests
        self._shared: mmap.mmap | None = None

    def decode(
        self,
        data: bytes,
        *,
        name: str = "the image",
        limits: Limits = LIMITS,
        at_least: int | None = None,
    ) -> NDArray[np.uint8]:
        """Decode the bytes of one image file; see `blindsight.data.decode_image`.

        Raises:
            HostileFile: The file is not an image, is damaged or too large, took too long, or ended
                the process that decoded it.
        """
        with self._lock:
            for _ in range(2):
                try:
                    return self._exchange(data, name, limits, at_least)
                except (ConnectionError, BrokenPipeError):
                    # The process may have ended for another reason (no memory on a busy machine):
                    # the file is the cause only if a new process ends, too.
                    self._stop()
            raise HostileFile(
                f"{name} is damaged: it ended the process that decoded it. Every other file is "
                "read."
            )

    def start(self, limits: Limits = LIMITS) -> None:
        """Start the process if it is not running, and wait until it is confined."""
        with self._lock:
            self._ready(limits)

    @property
    def process(self) -> int | None:
        """The id of the confined process, where it runs."""
        running = self._process is not None and self._owner == os.getpid()
        return self._process.pid if running and self._process is not None else None

    def close(self) -> None:
        with self._lock:
            self._stop()

    def __enter__(self) -> ConfinedReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuilt, (self.kind, self.seconds, self.address_space))

    def _exchange(
        self, data: bytes, name: str, limits: Limits, at_least: int | None
    ) -> NDArray[np.uint8]:
        answers, requests = self._ready(limits)
        deadline = time.monotonic() + self.seconds
        raw = os.path.splitext(name)[1].lower() in RAW_SUFFIXES
        request = REQUEST.pack(
            len(data), limits.pixels, limits.image_bytes, at_least or 0, limits.frames, raw
        )
        try:
            write_all(requests, request, memoryview(data))
            code, shape, text = self._answer(answers, deadline)
            if code == REFUSED:
                raise HostileFile(_printable(text).replace("{name}", name))
            return self._pixels(answers, shape, limits)
        except (HostileFile, ConnectionError):
            raise
        except TimeoutError:
            self._stop()
            raise HostileFile(
                f"{name} took longer than {self.seconds:g} seconds to decode, and was left out."
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._stop()
            raise HostileFile(
                f"{name} could not be decoded: its process failed ({type(error).__name__})."
            ) from None
        except BaseException:
            # An interrupt between request and answer would leave the answer for the next file.
            self._stop()
            raise

    def _pixels(
        self, answers: int, shape: tuple[int, int, int], limits: Limits
    ) -> NDArray[np.uint8]:
        """Take the pixels of a decoded image; the process may lie about their number."""
        height, width, channels = shape
        if not 0 < height * width <= limits.pixels or channels not in (1, _CHANNELS):
            raise ValueError("not the shape of an image")
        size = height * width * channels
        sides = (height, width) if channels == 1 else shape
        if self._shared is not None:
            return np.frombuffer(self._shared, np.uint8, size).reshape(sides).copy()
        body = read_exactly(answers, size)
        if body is None:
            raise ConnectionError("the answer is cut off")
        return np.frombuffer(body, np.uint8).reshape(sides)

    def _ready(self, limits: Limits) -> tuple[int, int]:
        running = (
            self._process is not None
            and self._owner == os.getpid()
            and self._process.poll() is None
            and self._ends is not None
        )
        capacity = _CHANNELS * limits.pixels
        if running and self._shared is not None and len(self._shared) < capacity:
            self._stop()
            running = False
        if not running:
            self._start(capacity)
        assert self._ends is not None  # noqa: S101  (just started)
        return self._ends

    def _start(self, capacity: int) -> None:
        self._stop()
        passed: list[int] = []
        if hasattr(os, "memfd_create"):
            memory = os.memfd_create("blindsight pixels")
            os.ftruncate(memory, capacity)
            self._shared = mmap.mmap(memory, capacity)
            own_end, other_end = (each.detach() for each in socket.socketpair())
            self._ends, passed = (own_end, own_end), [other_end, memory]
        options = {
            "kind": self.kind,
            "source": passed[0] if passed else 0,
            "memory": passed[1] if passed else -1,
            "capacity": capacity,
            "address_space": self.address_space + capacity,
            "seconds": self.seconds,
        }
        try:
            self._process = subprocess.Popen(  # noqa: S603  (this interpreter, no shell)
                [sys.executable, "-I", "-c", _MAIN, json.dumps(options), json.dumps(sys.path)],
                pass_fds=passed,
                stdin=subprocess.DEVNULL if passed else subprocess.PIPE,
                stdout=subprocess.DEVNULL if passed else subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                # Nothing of this process's environment: addresses and passwords may be in it.
                # Windows starts no program without the folder of its system.
                env=_ENVIRONMENT | {k: v for k, v in os.environ.items() if k == "SYSTEMROOT"},
                cwd="/",
                start_new_session=True,  # Ctrl-C is for the program, which then ends its readers
            )
        finally:
            for descriptor in passed:
                os.close(descriptor)
        if self._process.stdin is not None and self._process.stdout is not None:
            self._ends = (self._process.stdout.fileno(), self._process.stdin.fileno())
        self._owner = os.getpid()
        atexit.register(self._end)
        try:
            self._await_ready()
        except (OSError, ValueError):
            self._stop()
            raise MissingDependency(
                f"the process that decodes {self.kind} could not be started. Check that this "
                "Python can start programs, and that memory is free."
            ) from None

    def _await_ready(self) -> None:
        assert self._ends is not None  # noqa: S101  (just started)
        code, _, text = self._answer(self._ends[0], time.monotonic() + _START_SECONDS)
        if code != READY:
            raise ValueError("the process is not ready")
        self.walls = tuple(json.loads(text))

    def _answer(self, answers: int, deadline: float) -> tuple[int, tuple[int, int, int], str]:
        """Read the next answer, and wait for it no longer than until the deadline."""
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(answers, select.POLLIN)
            if not poll.poll(remaining * 1000):
                raise TimeoutError
            head = read_exactly(answers, ANSWER.size)
        else:  # Windows waits for no pipe: the process is ended at the deadline, and the pipe too
            assert self._process is not None  # noqa: S101  (it is asked)
            watch = threading.Timer(remaining, self._process.kill)
            watch.start()
            head = read_exactly(answers, ANSWER.size)
            watch.cancel()
            if head is None and time.monotonic() >= deadline:
                raise TimeoutError
        if head is None:
            raise ConnectionError("the process ended")
        code, height, width, channels, length = ANSWER.unpack(head)
        if length > _LONGEST_TEXT:
            raise ValueError("the text of an answer is too long")
        text = read_exactly(answers, length)
        if text is None:
            raise ConnectionError("the process ended")
        return code, (height, width, channels), text.decode(errors="replace")

    def _stop(self) -> None:
        """End the process, where it is ours."""
        process, self._process = self._process, None
        ends, self._ends = self._ends, None
        if process is not None and process.stdin is not None and process.stdout is not None:
            process.stdin.close()
            process.stdout.close()
        elif ends is not None:
            os.close(ends[0])
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.wait()
            atexit.unregister(self._end)
        self._shared = None

    def _end(self) -> None:
        if self._owner == os.getpid():
            self._stop()


def decode_image(
    data: bytes, *, name: str = "the image", limits: Limits = LIMITS, at_least: int | None = None
) -> NDArray[np.uint8]:
    """Decode the bytes of one image file to uint8 pixels, in a confined process.

    Parameters:
        data: the encoded file: see `blindsight.data.reading.FORMATS`, and DICOM.
        name: the file's name, for messages; by its ending a camera's raw file is recognised.
        limits: bounds on bytes and pixels, checked before decoding.
        at_least: decode a JPEG at a half, a quarter or an eighth of its size, as long as both
            sides keep this many pixels. This is about ten times faster for camera photos, and
            gives other pixels.

    Returns:
        (height, width) where the image is grey, otherwise (height, width, 3).

    Raises:
        HostileFile: The file is not an image, is damaged or too large, took too long, or ended the
            process that decoded it.

    Examples:
        >>> import io
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (4, 2)).save(file, "PNG")
        >>> decode_image(file.getvalue()).shape
        (2, 4, 3)
    """
    if len(data) > limits.image_bytes:
        raise HostileFile(
            f"{name} has {len(data):,} bytes, more than the limit of {limits.image_bytes:,}."
        )
    kind = kind_of(data)
    if (extra := missing_extra(kind)) is not None:
        optional_module(PACKAGES[kind][0], extra=extra)  # says how to install it
    # Two readers for each kind, so that two threads decode at once.
    key = (threading.get_ident() % 2, kind)
    with _READERS_LOCK:
        if key not in _READERS:
            _READERS[key] = ConfinedReader(kind)
        reader = _READERS[key]
    return reader.decode(data, name=name, limits=limits, at_least=at_least)


_READERS: dict[tuple[int, str], ConfinedReader] = {}
_READERS_LOCK = threading.Lock()


def _forget_readers() -> None:
    """Drop the readers in a forked child: they belong to the parent, whose locks may be held."""
    global _READERS_LOCK
    _READERS.clear()
    _READERS_LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_readers)


def _rebuilt(kind: str, seconds: float, address_space: int) -> ConfinedReader:
    return ConfinedReader(kind, seconds=seconds, address_space=address_space)


def _printable(text: str) -> str:
    """Return a worker's message without control characters: a hostile file may have written it."""
    return "".join(letter for letter in text if letter.isprintable())

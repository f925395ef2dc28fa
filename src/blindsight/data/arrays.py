"""npz files from outside: no objects, so that nothing is unpickled, and sizes checked before
unpacking.
"""

from __future__ import annotations

import os
import zipfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import HostileFile
from blindsight.data.limits import LIMITS, Limits, check_packing, regular_file

__all__ = ["load_arrays"]


def load_arrays(
    path: str | os.PathLike[str], *, limits: Limits = LIMITS
) -> dict[str, NDArray[Any]]:
    """The arrays of an npz file, by name.

    Raises:
        HostileFile: It is damaged, holds objects, or would unpack to more than the limits allow.
    """
    path = regular_file(path, largest=limits.file_bytes)
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            size = sum(info.file_size for info in infos)
            if size > limits.unpacked_bytes:
                raise HostileFile(
                    f"{path.name} would unpack to {size:,} bytes; limit {limits.unpacked_bytes:,}."
                )
            for info in infos:
                check_packing(info)
                with archive.open(info) as stream:
                    _check_header(stream, info, path.name)
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except HostileFile:
        raise
    except Exception as error:
        # numpy raises ValueError, BadZipFile, EOFError, zlib.error, KeyError, ... on damaged files.
        raise HostileFile(
            f"{path.name} is not a readable npz file ({type(error).__name__})."
        ) from error


def _check_header(stream: Any, info: zipfile.ZipInfo, name: str) -> None:
    """The shape that an array claims must fit the bytes that it has, before numpy allocates for the
    claim.
    """
    if not info.filename.endswith(".npy"):
        raise HostileFile(f"{name} holds {info.filename[:60]!r}, which is not an array.")
    version = np.lib.format.read_magic(stream)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read(stream)
    claimed = dtype.itemsize
    for extent in shape:
        claimed *= extent
    if dtype.hasobject or claimed > info.file_size:
        raise HostileFile(f"{name}: an array holds objects, or claims more bytes than it has.")

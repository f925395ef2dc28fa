"""DICOM: the picture as a doctor sees it, and whose it is; every other field stays behind.

Stored values become what they measure (rescale slope and intercept), then grey levels by the file's own window, or by
the picture's own range where it names none; MONOCHROME1 is turned round. Of several frames the middle one is taken.
The patient's id is handed out hashed, to tell which pictures are of one person; no name, date or place is read.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import optional_module
from blindsight.core.errors import HostileFile
from blindsight.data.limits import LIMITS, Limits

__all__ = ["decode_dicom", "is_dicom", "patient_of"]

_MOST_FRAMES = 10_000


def is_dicom(data: bytes) -> bool:
    """Whether the bytes begin as a DICOM file does: 128 of anything, then DICM."""
    return data[128:132] == b"DICM"


def decode_dicom(data: bytes, *, name: str = "the image", limits: Limits = LIMITS) -> NDArray[np.uint8]:
    """The picture as uint8, (h, w) if grey and (h, w, 3) if it has colour; metadata stay behind."""
    module: Any = optional_module("pydicom", extra="dicom")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dataset = module.dcmread(io.BytesIO(data))
            _check_size(dataset, name, limits)
            _check_decoder(dataset, name)
            frames = dataset.pixel_array
            return _shown(_one_frame(frames, dataset), dataset)
    except HostileFile:
        raise
    except Exception as error:
        # A decoder fed hostile bytes raises anything.
        raise HostileFile(f"{name} is no DICOM picture that can be read ({type(error).__name__}).") from error


def patient_of(data: bytes) -> str | None:
    """The SHA-256 of the patient's id, or None where the file names none."""
    module: Any = optional_module("pydicom", extra="dicom")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dataset = module.dcmread(io.BytesIO(data), specific_tags=["PatientID"], stop_before_pixels=True)
    except Exception as error:
        raise HostileFile(f"not a DICOM file that can be read ({type(error).__name__}).") from error
    patient = str(dataset.get("PatientID", "") or "").strip()
    return hashlib.sha256(patient.encode()).hexdigest() if patient else None


def _check_size(dataset: Any, name: str, limits: Limits) -> None:
    """Refuse by what the header says, before anything is decoded."""
    rows, columns = int(dataset.get("Rows", 0) or 0), int(dataset.get("Columns", 0) or 0)
    frames = int(dataset.get("NumberOfFrames", 1) or 1)
    if rows < 1 or columns < 1:
        raise HostileFile(f"{name} is a DICOM file without a picture.")
    if frames > _MOST_FRAMES or rows * columns * max(1, frames) > limits.pixels:
        raise HostileFile(
            f"{name} says it has {frames:,} x {rows} x {columns} pixels, more than the limit of {limits.pixels:,}."
        )


def _check_decoder(dataset: Any, name: str) -> None:
    """A compression that nothing installed here reads is no damage, and is said."""
    pixels: Any = optional_module("pydicom.pixels", extra="dicom")
    way = dataset.file_meta.TransferSyntaxUID
    if way.is_compressed and way.is_encapsulated and not pixels.get_decoder(way).is_available:
        raise HostileFile(f"{name} is compressed as {way.name}, which needs a decoder that is not installed.")


def _one_frame(pixels: NDArray[Any], dataset: Any) -> NDArray[Any]:
    colour = int(dataset.get("SamplesPerPixel", 1)) > 1
    wanted = 3 if colour else 2
    return pixels[len(pixels) // 2] if pixels.ndim > wanted else pixels


def _shown(frame: NDArray[Any], dataset: Any) -> NDArray[np.uint8]:
    pixels: Any = optional_module("pydicom.pixels", extra="dicom")
    kind = str(dataset.get("PhotometricInterpretation", "MONOCHROME2"))
    if kind == "PALETTE COLOR":
        return _bytes(pixels.apply_color_lut(frame, dataset))
    if frame.ndim == 3:
        if kind.startswith("YBR_FULL"):
            frame = pixels.convert_color_space(frame, kind, "RGB")
        return _bytes(frame)
    seen = np.asarray(pixels.apply_voi_lut(pixels.apply_modality_lut(frame, dataset), dataset), np.float64)
    low, high = float(seen.min()), float(seen.max())
    scaled = (seen - low) * (255.0 / (high - low)) if high > low else np.zeros_like(seen)
    return np.rint(255 - scaled if kind == "MONOCHROME1" else scaled).astype(np.uint8)


def _bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Colours of 16 or 32 bits keep their first eight."""
    if values.dtype.itemsize > 1:
        values = values >> (8 * (values.dtype.itemsize - 1))
    return np.asarray(values, np.uint8)

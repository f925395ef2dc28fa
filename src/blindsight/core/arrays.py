"""Names of the array types that functions take and return."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Bools", "Bytes", "Floats", "Floats32", "Integers", "Ints"]

#: An array of any element type.
Array = NDArray[Any]
#: An array of booleans.
Bools = NDArray[np.bool_]
#: An array of unsigned bytes: pixels or packed codes.
Bytes = NDArray[np.uint8]
#: An array of double-precision numbers.
Floats = NDArray[np.float64]
#: An array of single-precision numbers.
Floats32 = NDArray[np.float32]
#: An array of 64-bit integers.
Ints = NDArray[np.int64]
#: An array of integers of any width.
Integers = NDArray[np.integer[Any]]

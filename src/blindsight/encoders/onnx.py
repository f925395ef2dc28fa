"""Just enough of the ONNX file format to hand a network to onnxruntime: nodes, constants, one
input, one output.

ONNX is a protocol buffer: every field is a key (number and kind), then a varint, or a length and
bytes. The field numbers below are those of the published `onnx.proto`.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["FLOAT", "Graph"]

FLOAT, UINT8, INT64 = 1, 2, 7
_TYPES = {np.dtype(np.float32): FLOAT, np.dtype(np.uint8): UINT8, np.dtype(np.int64): INT64}
_IR_VERSION, _OPERATORS = 8, 13


class Graph:
    """A network under construction.

    `node` and `constant` give the name by which others refer to their value.
    """

    def __init__(self, name: str, dtype: DTypeLike, shape: tuple[int | str, ...]) -> None:
        self._input = _value(name, _TYPES[np.dtype(dtype)], shape)
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []

    def constant(self, name: str, value: NDArray[Any] | np.generic) -> str:
        """A constant tensor."""
        array = np.asarray(value)
        dims = b"".join(_number(1, extent) for extent in array.shape)
        kind = _number(2, _TYPES[array.dtype])
        self._constants.append(
            dims + kind + _text(8, name) + _bytes(9, np.ascontiguousarray(array).tobytes())
        )
        return name

    def node(self, operator: str, *inputs: str, **attributes: int | float | list[int]) -> str:
        """An operation; gives the name of its one output."""
        name = f"{operator}{len(self._nodes)}"
        parts = [_text(1, source) for source in inputs]
        parts += [_text(2, name), _text(3, name), _text(4, operator)]
        parts += [_bytes(5, _attribute(key, value)) for key, value in attributes.items()]
        self._nodes.append(b"".join(parts))
        return name

    def model(self, output: str, shape: tuple[int | str, ...]) -> bytes:
        """The whole model with `output` (float32) as its result."""
        graph = b"".join(_bytes(1, node) for node in self._nodes) + _text(2, "blindsight")
        graph += b"".join(_bytes(5, constant) for constant in self._constants)
        graph += _bytes(11, self._input) + _bytes(12, _value(output, FLOAT, shape))
        return (
            _number(1, _IR_VERSION)
            + _bytes(7, graph)
            + _bytes(8, _text(1, "") + _number(2, _OPERATORS))
        )


def _value(name: str, kind: int, shape: tuple[int | str, ...]) -> bytes:
    """A named input or output whose first axis is the batch, of any length."""
    dims = b"".join(
        _bytes(1, _text(2, d) if isinstance(d, str) else _number(1, d)) for d in ("batch", *shape)
    )
    return _text(1, name) + _bytes(2, _bytes(1, _number(1, kind) + _bytes(2, dims)))


def _attribute(name: str, value: int | float | list[int]) -> bytes:
    if isinstance(value, list):
        return _text(1, name) + b"".join(_number(8, item) for item in value) + _number(20, 7)
    if isinstance(value, float):
        return _text(1, name) + _varint(2 << 3 | 5) + struct.pack("<f", value) + _number(20, 1)
    return _text(1, name) + _number(3, value) + _number(20, 2)


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value & (1 << 64) - 1)


def _varint(value: int) -> bytes:
    pieces = bytearray()
    while value > 0x7F:
        pieces.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*pieces, value])

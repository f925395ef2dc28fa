"""Decoders' own warnings stay inside: they quote what a file holds."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet"]

_FILTERS = threading.Lock()


@contextmanager
def quiet(*raised: type[Warning]) -> Iterator[None]:
    """Warnings are silent, but for those that are to be raised.

    Python's filters belong to the whole process, so only one thread at a time may change them.
    """
    with _FILTERS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in raised:
            warnings.simplefilter("error", kind)
        yield

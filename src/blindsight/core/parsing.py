"""One thread at a time parses Python text, such as the headers of NumPy's files.

CPython 3.11 before 3.11.8 counts the depth of what it parses in one place for all threads. If the
garbage collector runs Python code while a thread parses, and another thread parses meanwhile, the
first one fails with `SystemError: AST constructor recursion depth mismatch`, on an intact file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["one_parser"]

_lock = threading.RLock()


@contextmanager
def one_parser() -> Iterator[None]:
    """Let no other thread parse while the context lasts; use it around `np.load` and `ast`.

    Examples:
        >>> import ast
        >>> with one_parser():
        ...     ast.literal_eval("(3, 4)")
        (3, 4)
    """
    with _lock:
        yield


def _after_fork_in_child() -> None:
    """The thread that held the lock does not exist in the child, so nobody would release it."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

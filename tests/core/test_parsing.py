"""Files of NumPy are read in several threads at once.

Their headers are Python text, and CPython 3.11 before 3.11.8 parses one such text at a time only: a
thread that parses while another one is interrupted in the middle of it, by Python code that the
garbage collector runs, makes that other one fail with `SystemError: AST constructor recursion depth
mismatch`.
"""

from __future__ import annotations

import ast
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import blindsight
from blindsight.app.train_together import read_labelled
from blindsight.data import load_arrays
from blindsight.encoders.embeddings import Embeddings
from blindsight.federated.deploy.plan import read_rows
from blindsight.index.vector_rows import VectorRows

SOURCE = Path(blindsight.__file__).parent


def test_python_text_is_parsed_by_one_thread_at_a_time() -> None:
    """Whatever reads NumPy's files or parses text is inside `one_parser`."""
    parsing = {"load", "read_array_header_1_0", "read_array_header_2_0", "parse"}
    offenders = []
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inside = {
            id(child)
            for node in ast.walk(tree)
            if isinstance(node, ast.With) and "one_parser()" in ast.unparse(node.items[0])
            for child in ast.walk(node)
        }
        offenders += [
            f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node)}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and node.attr in parsing
            and ast.unparse(node.value) in ("np", "np.lib.format", "ast")
            and id(node) not in inside
        ]
    assert [line.partition(":")[0] for line in offenders] == ["data/arrays.py"] * 2, offenders


@contextmanager
def interrupted_while_it_parses(other: Callable[[], object]) -> Iterator[list[threading.Thread]]:
    """Run `other` in a second thread, to its end or until it waits for this thread, each time that
    this thread is in the middle of parsing; yield those threads.
    """
    this, threads = threading.get_ident(), list[threading.Thread]()

    def interrupt(phase: str, info: dict[str, int]) -> None:
        frame = sys._getframe(1)
        if threading.get_ident() != this or frame.f_code is not ast.parse.__code__:
            return
        if phase == "start" and len(threads) < 8:
            threads.append(threading.Thread(target=other, daemon=True))
            threads[-1].start()
            threads[-1].join(0.1)

    threshold = gc.get_threshold()
    gc.callbacks.append(interrupt)
    gc.set_threshold(1)
    try:
        yield threads
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(interrupt)
        for thread in threads:
            thread.join()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    rows = np.eye(4, 8)
    np.savez(tmp_path / "rows.npz", X=rows, y=np.arange(4))
    np.savez(tmp_path / "vectors.npz", vectors=rows, ids=np.arange(4))
    np.save(tmp_path / "vectors.npy", rows.astype(np.float32))
    return tmp_path


READERS = {
    "a site's rows": lambda files: read_rows(files / "rows.npz"),
    "labelled rows": lambda files: read_labelled(files / "rows.npz"),
    "a data set": lambda files: load_arrays(files / "rows.npz"),
    "packed vectors": lambda files: list(Embeddings(files / "vectors.npz").pieces()),
    "mapped vectors": lambda files: list(Embeddings(files / "vectors.npy").pieces()),
    "rows of vectors": lambda files: VectorRows(files / "vectors.npy")[0],
}


@pytest.mark.parametrize("reader", READERS)
def test_a_file_is_read_while_another_thread_reads_one(reader: str, files: Path) -> None:
    read = READERS[reader]
    read(files)  # what it imports, it imports before
    with interrupted_while_it_parses(lambda: read(files)) as threads:
        read(files)
    assert threads

"""The figures of the code are counted truly: on a small package where they are known."""

from __future__ import annotations

from pathlib import Path

from benchmarks import house

FILES = {
    "__init__.py": "",
    "core/__init__.py": "from blindsight.core.one import A\n",
    "core/one.py": "from typing import Any\nclass A:\n"
    "    def f(self, x: Any, y: int, **z: Any): ...\n",
    "core/two.py": "from blindsight.core import one\nclass B: ...\nclass _C: ...\n",
    "app/__init__.py": "",
    "app/work.py": "import blindsight.core.two\nclass A: ...\nclass _C: ...\n",
}


def test_a_small_package_is_counted(tmp_path: Path) -> None:
    source = tmp_path / "blindsight"
    for name, text in FILES.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    trees = house.read_trees(source)
    assert house.sizes(source) == {"(top)": (1, 0), "all": (6, 10), "app": (2, 3), "core": (3, 7)}
    assert house.single_importers(trees) == ["blindsight.core.two"]
    assert house.any_share(trees)["core"] == house.any_share(trees)["all"] == (2, 3)
    assert house.repeated_class_names(trees) == {
        "A": ["blindsight.app.work", "blindsight.core.one"]
    }


def test_what_a_job_passes_is_counted_in_every_thread() -> None:
    import threading

    from blindsight.core import checks

    def job() -> None:
        thread = threading.Thread(target=checks.whole, args=("n", 3))
        thread.start()
        thread.join()

    modules, functions = house.passed(job)
    assert modules == {"core/checks.py"}
    assert ("core/checks.py", "whole") in functions

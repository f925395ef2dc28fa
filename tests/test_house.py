"""The plan of the house stays true: who may import whom, what is public, what must never be
written.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.house import any_share, read_trees, repeated_class_names, undocumented_names

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "blindsight"
ROOMS = {"hashing", "federated", "metric", "sketching", "tagging"}
BELOW = {"core", "privacy", "data", "evaluation", "encoders", "codebooks"}
ALLOWED: dict[str, set[str]] = {
    "core": set(),
    "privacy": {"core"},
    "data": {"core"},
    "evaluation": {"core"},
    "encoders": {"core", "data"},
    "codebooks": {"core", "privacy", "data", "evaluation", "encoders"},
    **dict.fromkeys(ROOMS, BELOW),
    "index": BELOW | ROOMS,
    "audit": BELOW | ROOMS | {"index"},
    "release": BELOW | ROOMS | {"index"},
    "app": BELOW | ROOMS | {"index", "audit", "release"},
    "workbench": BELOW | ROOMS | {"index", "audit", "app"},
    "cli": BELOW | ROOMS | {"index", "audit", "app", "workbench"},
    "pytest_plugin": {"audit"},
}
ANYTHING = {"__init__", "__main__"}
MODULES = sorted(SOURCE.rglob("*.py"))
LONGEST_MODULE = 700  # lines


trees = functools.cache(read_trees)  # by module; nobody changes them


def _tree(path: Path) -> ast.Module:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return trees()[".".join(parts).removesuffix(".__init__")]


def _part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(_tree(path)):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.split(".")[0] == "blindsight"
        ):
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.split(".")[1]
                for alias in node.names
                if alias.name.startswith("blindsight.")
            }
    return found - {"__version__"}


def _name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def _all_or_none(offenders: list[str]) -> None:
    """Fail with the whole list, so that one run shows everything there is to mend."""
    assert not offenders, "\n" + "\n".join(offenders)


def test_nobody_imports_above_its_floor() -> None:
    offenders = []
    for path in MODULES:
        part = _part(path)
        if part in ANYTHING:
            continue
        above = _imports(path) - ALLOWED[part] - {part}
        if above:
            offenders.append(f"{_name(path)}: {part} may not import {sorted(above)}")
    _all_or_none(offenders)


def _imported_when_run(path: Path) -> set[str]:
    """The modules of the package that a module imports, those under TYPE_CHECKING left out."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return {name.partition(".")[2] for name in modules if name.startswith("blindsight.")}


def _imports_below_app(path: Path) -> set[str]:
    allowed = {"app", "core.errors", "__version__", _part(path)}
    if _part(path) == "cli":
        allowed.add("workbench")
    names = _imported_when_run(path)
    return {
        name
        for name in names
        if name != "core" and not any(name == ok or name.startswith(f"{ok}.") for ok in allowed)
    }


def test_cli_and_workbench_import_only_app_errors_and_types() -> None:
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in MODULES
        if _part(path) in {"cli", "workbench"} and _imports_below_app(path)
    }
    assert found == set(), "these must call blindsight.app instead"


def _listed_names(tree: ast.Module) -> list[str] | None:
    """What a module's `__all__` lists; None where it has none."""
    for node in tree.body:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        if [ast.unparse(target) for target in targets] == ["__all__"]:
            return list(ast.literal_eval(node.value))
    return None


def test_every_module_says_what_it_is_and_what_is_public() -> None:
    offenders = []
    for path in MODULES:
        tree = _tree(path)
        if not ast.get_docstring(tree):
            offenders.append(f"{_name(path)}: no docstring")
        short = path.name in {"__init__.py", "__main__.py"} and len(tree.body) <= 2
        if not short and _listed_names(tree) is None:
            offenders.append(f"{_name(path)}: no __all__")
    _all_or_none(offenders)


def test_no_module_is_longer_than_can_be_read_in_one_go() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in MODULES}
    _all_or_none(
        [
            f"{_name(path)}: {lines} lines, {LONGEST_MODULE} are allowed"
            for path, lines in lengths.items()
            if lines > LONGEST_MODULE
        ]
    )


def test_what_is_public_exists_and_is_explained() -> None:
    offenders = []
    for path in MODULES:
        dotted = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        module = importlib.import_module(dotted.removesuffix(".__init__"))
        for public in getattr(module, "__all__", ()):
            value = getattr(module, public, offenders)
            if value is offenders:
                offenders.append(f"{_name(path)}: {public} does not exist")
            elif (isinstance(value, type) or inspect.isfunction(value)) and not value.__doc__:
                offenders.append(f"{_name(path)}: {public} has no docstring")
    _all_or_none(offenders)


def test_every_exported_name_documents_its_parameters_and_has_an_example() -> None:
    undocumented, exported = undocumented_names()
    assert exported > 80
    _all_or_none([f"{name} lacks {lacking}" for name, lacking in undocumented.items()])


def test_the_architecture_names_modules_that_exist() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir()}
    named = {
        name for name in re.findall(r"`([\w/]+\.py)`", page) if name.partition("/")[0] in folders
    }
    assert len(named) > 30
    _all_or_none([f"{name} does not exist" for name in named if not (SOURCE / name).is_file()])
    ways = page.partition("## Five ways")[2].partition("\n## ")[0].split("\n- ")[1:]
    for way in ways:
        steps = [step for step in re.findall(r"`([\w/]+\.py)`", way) if "door" not in step]
        _all_or_none(
            [f"{step} is named twice in one way" for step in steps if steps.count(step) > 1]
        )


def test_no_public_class_shares_its_name() -> None:
    _all_or_none([f"{name}: {modules}" for name, modules in repeated_class_names(trees()).items()])


def test_few_parameters_are_typed_any() -> None:
    untyped, parameters = any_share(trees())["all"]
    assert untyped / parameters < 0.03


def _tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def test_the_project_stands_alone() -> None:
    """No unpickling, no global seeds, no registry's host: written so that this file does not find
    itself.
    """
    forbidden = re.compile(
        "|".join(
            [
                r"\.\./" + "shared",
                "pickle" + r"\.loads?\(",
                "np.random" + r"\.seed",
                r"torch\.load" + r"\(",
                "allow_pickle" + "=True",
                "pypi" + r"\.org|python" + "hosted|npm" + r"js\.(org|com)|deb\." + "debian",
            ]
        )
    )
    found = []
    for path in _tracked():
        if path.parts[-2:] == (".ci", "run") or path.suffix in {".png", ".svg", ".npz"}:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if forbidden.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "more"), [("blindsight.privacy", ()), ("blindsight.cli.main", ("numpy", "PIL"))]
)
def test_heavy_libraries_stay_out_of_the_way(module: str, more: tuple[str, ...]) -> None:
    heavy = ("torch", "opacus", "flwr", "ray", "faiss", "matplotlib", *more)
    code = f"import {module}, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_flat_surface_is_what_it_says() -> None:
    """What can be imported from `blindsight` itself is promised: no name may vanish, and none comes
    unannounced.
    """
    import blindsight

    for name in blindsight.__all__:
        assert getattr(blindsight, name) is not None
    homes = {name for names in blindsight._HOMES.values() for name in names} | set(
        blindsight._MODULES
    )
    assert homes | {"__version__"} == set(blindsight.__all__)
    assert set(blindsight.__all__) <= set(dir(blindsight))
    with pytest.raises(AttributeError):
        _ = blindsight.NothingOfTheKind


def test_importing_the_package_is_quick() -> None:
    """Nothing but the standard library is read, so it takes what Python itself takes: far below 50
    ms.
    """
    code = (
        "import blindsight, sys; print({name.split('.')[0] for name in sys.modules} - "
        "sys.stdlib_module_names)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    own = {"blindsight", "__main__", "_virtualenv", "_distutils_hack"}
    assert set(ast.literal_eval(done.stdout)) <= own

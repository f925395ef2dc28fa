"""The names of ImageNet's 1,000 classes, in the order of the network's last layer.

They are facts that a registry package carries as one literal tuple (open-clip-torch, MIT licence); the file is fetched
by name, version and checksum like any set, and read as a literal: nothing in it is ever executed.
"""

from __future__ import annotations

import ast
from functools import cache

from blindsight.core.errors import HostileFile
from blindsight.data import fetch
from blindsight.data.fetch.finish import keep

__all__ = ["class_names"]

_FILE, _NAME, _COUNT = "zero_shot_metadata.py", "IMAGENET_CLASSNAMES", 1000
_RECIPE = fetch.Recipe(
    name="imagenet-names",
    client="pip",
    package="open-clip-torch",
    version="3.3.0",
    file="open_clip_torch-3.3.0-py3-none-any.whl",
    size=1_547_268,
    sha256="c549ad5ed6bfc119cc11105033c0a2b9d7a2a4afeb40a58a09aab3da1a0043ce",
    members=(
        fetch.Member(
            f"open_clip/{_FILE}",
            _FILE,
            19_245,
            "3bd8adb168bdf80fd681a71258e67f2c4d0f8ed73eae9b504ed5063e1726bbe9",
        ),
    ),
    finish=keep,
)


@cache
def class_names() -> tuple[str, ...]:
    """The names; fetched at the first use.

    Raises:
        MissingData: They are not in the cache, and the registry could not be reached.
    """
    source = (fetch.get(_RECIPE.name, recipe=_RECIPE) / _FILE).read_text(encoding="utf-8")
    try:
        for statement in ast.parse(source).body:
            if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", None) == _NAME:
                names = ast.literal_eval(statement.value)
                if len(names) == _COUNT and all(isinstance(name, str) for name in names):
                    return tuple(names)
    except (SyntaxError, ValueError) as error:
        raise HostileFile(f"{_FILE} is not the list of names that was expected: {error}.") from error
    raise HostileFile(f"{_FILE} does not hold the {_COUNT} class names that were expected.")

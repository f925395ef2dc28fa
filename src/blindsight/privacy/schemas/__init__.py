"""JSON Schemas of the privacy card and the disclosure card, versioned and shipped, so that other
tools can read them.

Examples:
    >>> sorted(schema("privacy card")["required"])[:3]
    ['accountant', 'also', 'assumptions']
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, Literal

__all__ = ["schema"]

_FILES = {"privacy card": "privacy-card-2.json", "disclosure card": "disclosure-card-2.json"}


def schema(card: Literal["privacy card", "disclosure card"]) -> dict[str, Any]:
    """The JSON Schema (2020-12) of what `Guarantee.to_json` or `Disclosure.to_json` writes."""
    text = (resources.files(__name__) / _FILES[card]).read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded

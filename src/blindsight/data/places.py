"""Where data may be on this machine: the folder that BLINDSIGHT_DATA names, and the cache."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder", "data_folder"]


def data_folder() -> Path | None:
    """The user's own data folder (environment variable BLINDSIGHT_DATA), or None if unset."""
    named = os.environ.get("BLINDSIGHT_DATA")
    return Path(named).expanduser() if named else None


def cache_folder() -> Path:
    """Where fetched sets and computed features are kept (BLINDSIGHT_CACHE, default
    ~/.cache/blindsight).
    """
    named = os.environ.get("BLINDSIGHT_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "blindsight"

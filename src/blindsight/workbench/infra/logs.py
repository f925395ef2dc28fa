"""The workbench's log lines, as text for people or as JSON for a collector.

A line says which route was asked, how it was answered and how long that took; never an address with
its query, a name, or what an error said. Who did what stands in the access log.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Literal

__all__ = ["JsonLines", "start_logging"]

_FIELDS = ("method", "route", "status", "milliseconds")


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the fields of a request.

    Example:
        >>> record = logging.LogRecord("blindsight", 20, "", 0, "ready", None, None)
        >>> json.loads(JsonLines().format(record))["message"]
        'ready'
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record; of an exception the type only."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
        return json.dumps(line, ensure_ascii=False, default=str)


def start_logging(kind: Literal["text", "json"]) -> None:
    """Write log lines to standard error: as text the warnings, as JSON every request too."""
    handler = logging.StreamHandler()
    if kind == "json":
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    if kind == "json":
        logging.getLogger("blindsight.workbench").setLevel(logging.INFO)

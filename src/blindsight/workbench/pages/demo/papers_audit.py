"""The demo's audit of the five papers: every claim attacked, with a report, tables and cards."""

from __future__ import annotations

import json
from typing import Any

from blindsight.workbench.infra.jobs import JobContext

__all__ = ["FILES", "run"]

FILES = ("report.html", "report.md", "report.json", "cards.txt")


def run(arguments: dict[str, Any], place: JobContext) -> dict[str, Any]:
    """About a minute; `deep` takes ten times the trials."""

    from blindsight.audit.papers import all_verdicts, report_on_all
    from blindsight.audit.report.verdict import COLUMNS

    deep, seed = bool(arguments.get("deep")), int(arguments.get("seed", 0))

    def say(done: int, total: int) -> None:
        place.say(done, total + 1, "attacking")

    verdicts = all_verdicts(deep=deep, seed=seed, progress=say)
    place.say(5, 6, "drawing")
    report = report_on_all(verdicts, seed=seed)
    report.write(place.folder)
    (place.folder / "cards.txt").write_text(
        "\n\n".join(f"{name}\n{card.card()}" for name, card in report.cards) + "\n",
        encoding="utf-8",
    )
    rows = [{"room": v.room, "refuted": v.refuted, "cells": list(v.cells())} for v in verdicts]
    return {
        "headline": report.headline(),
        "columns": list(COLUMNS),
        "rows": rows,
        "advice": report.advice(),
        "cards": {name: json.loads(card.to_json()) for name, card in report.cards},
    }

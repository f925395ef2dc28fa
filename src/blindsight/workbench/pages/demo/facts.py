"""What every page says first: what leaves the machine, the three numbers, and what is left of the
budget.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from blindsight.workbench.infra.access import Studio
from blindsight.workbench.infra.identity import Role

__all__ = ["PAGES", "DemoPage", "Facts", "page_facts"]


@dataclass(frozen=True)
class DemoPage:
    """A page's title and sentence, who may open it, and in which unit its budget counts."""

    title: str
    says: str
    roles: tuple[Role, ...]
    unit: str = "record"


PAGES: dict[str, DemoPage] = {
    "search": DemoPage(
        "Search digits", "Find digits that look alike among protected codes.", ("analyst",)
    ),
    "sketch": DemoPage(
        "Sketch a digit",
        "Send counts instead of a picture, and see what comes back.",
        ("analyst", "aggregator"),
    ),
    "federation": DemoPage(
        "Train on digits",
        "Users learn one model; only the sum of their updates is opened.",
        ("aggregator",),
    ),
    "metric": DemoPage(
        "Learn a distance", "From private pairs of points; the pair graph sets the price.", ()
    ),
    "tags": DemoPage(
        "Ask for tags", "Which digits does a scene show? Every answer costs.", ("analyst",), "query"
    ),
    "papers": DemoPage(
        "Attack the papers", "Every claim of the five papers, attacked.", ("analyst", "aggregator")
    ),
}


@dataclass(frozen=True)
class Facts:
    """Three sentences and three numbers."""

    leaves: str
    stays: str
    claimed: str
    proven: str
    audited: str
    unit: str


def page_facts(studio: Studio, page: str) -> Facts:
    """The facts as they stand now."""
    makers = {
        "search": _search,
        "sketch": _sketch,
        "federation": _federation,
        "metric": _metric,
        "tags": _tags,
        "papers": _papers,
    }
    return makers[page](studio)


def _read(studio: Studio, room: str, name: str = "facts.json") -> dict[str, Any] | None:
    path = studio.settings.state / "prepared" / room / name
    return json.loads(path.read_text()) if path.exists() else None


def _number(value: Any) -> str:
    return "none" if value in (None, "inf") else f"ε = {float(value):.4g}"


def _search(studio: Studio) -> Facts:
    own = studio.settings.index != "mnist5k"
    fact = (
        studio.demo.search.get().facts()[0]
        if own
        else _read(studio, "search", "8/facts.json") or {}
    )
    guarantee = fact.get("guarantee", {})
    unmeasured = "not audited: blindsight audit" if own else "being prepared"
    return Facts(
        leaves="For each stored picture one protected code, released once for each budget.",
        stays="The pictures, their features, and the picture you ask with.",
        claimed=_number(guarantee.get("claimed")),
        proven=_number(guarantee["epsilon"]) if guarantee else "being prepared",
        audited=f"ε ≥ {fact['audited']:g}" if fact.get("audited") is not None else unmeasured,
        unit="per stored picture, at the chosen budget",
    )


def _sketch(studio: Studio) -> Facts:
    fact = (_read(studio, "sketch") or {}).get("Q3", {})
    return Facts(
        leaves="Counts for every bit of every pixel: a sketch, drawn at random around the picture.",
        stays="The picture itself and the random numbers.",
        claimed="hidden",
        proven="none: a sketch has no epsilon",
        audited=f"{max(fact['psnr'], fact['psnr_prior']):.1f} dB recovered"
        if fact
        else "being prepared",
        unit="by an attacker who knows similar pictures, at Q3",
    )


def _federation(studio: Studio) -> Facts:
    job = studio.jobs.latest("demo-federation", state="done")
    guarantee = (job or {}).get("result", {}).get("guarantee", {}) if job else {}
    return Facts(
        leaves="Encrypted, shuffled updates; then their sum, to everyone.",
        stays="Each user's pictures and own update.",
        claimed="updates hidden",
        proven=_number(guarantee.get("epsilon")) if guarantee else "none without noise",
        audited="the sum is exact"
        if not guarantee or guarantee.get("epsilon") == "inf"
        else "not audited",
        unit="per user, over all rounds of the last run",
    )


def _metric(studio: Studio) -> Facts:
    job = studio.jobs.latest("demo-metric", state="done")
    guarantee = (job or {}).get("result", {}).get("guarantee", {}) if job else {}
    return Facts(
        leaves="A learned linear map: a handful of noisy numbers.",
        stays="Records, pairs and their labels.",
        claimed=_number(guarantee.get("claimed")),
        proven=_number(guarantee["epsilon"]) if guarantee else "not learned yet",
        audited=_from_audit(studio, "DPPMetric"),
        unit=f"per {guarantee['unit']}, of the last run" if guarantee else "per pair",
    )


def _from_audit(studio: Studio, method: str) -> str:
    """What the latest audit measured of a method of ours."""
    job = studio.jobs.latest("demo-audit", state="done")
    rows = job["result"]["rows"] if job else []
    return next(
        (row["cells"][5] for row in rows if row["cells"][0].startswith(method)), "run an audit"
    )


def _tags(studio: Studio) -> Facts:
    fact = _read(studio, "tags") or {}
    guarantee = fact.get("guarantee", {})
    return Facts(
        leaves="One noisy set of tags for each question.",
        stays="The image you ask about, the model and its scores.",
        claimed=_number(guarantee.get("claimed")),
        proven=_number(guarantee["epsilon"]) if guarantee else "being prepared",
        audited=f"ε ≥ {fact['audited']:g}" if fact else "being prepared",
        unit="per question; each further one costs again",
    )


def _papers(studio: Studio) -> Facts:
    job = studio.jobs.latest("demo-audit", state="done")
    rows = (job or {}).get("result", {}).get("rows", []) if job else []
    refuted = sum(bool(row["refuted"]) for row in rows)
    return Facts(
        leaves="Nothing: the report stays here until you download it.",
        stays="Everything.",
        claimed=f"{len(rows)} promises judged" if rows else "no audit yet",
        proven="an audit proves nothing",
        audited=f"{refuted} refuted" if rows else "run one below",
        unit="in the latest audit",
    )

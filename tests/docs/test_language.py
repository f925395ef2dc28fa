"""Plain words: *per* for rates, and no figure of speech where a newcomer looks for a term."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
TEMPLATES = sorted((ROOT / "src").rglob("*.html"))
CODE = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])

_AMOUNT = "once|one|key|update|queries|bytes|seconds|images|charges|times|GB|MB|bits|pixels|argsort"
_UNIT = "photo|image|query|round|second|user|pixel|record|weight|class|row|method|pair|bit|cell|core|label|party|channel"  # noqa: E501
RATE = re.compile(
    rf"\b(?:{_AMOUNT}) an? (?:{_UNIT})\b(?! (?:of|in|that|from|nearly|sees|has|with|time)\b)"
)
FIGURE = re.compile(
    r"\b(?:dice|tired|housekeeping|eyes?|this house|the house|the rooms?)\b", re.IGNORECASE
)
NOT_PROSE = re.compile(r"`[^`]*`|np\.eye\([^)]*\)|\"eye\"")


def _found(pattern: re.Pattern[str], path: Path) -> list[str]:
    lines = NOT_PROSE.sub("", path.read_text()).splitlines()
    return [f"{path.relative_to(ROOT)}: {line.strip()}" for line in lines if pattern.search(line)]


def test_public_pages_use_terms_not_figures_of_speech() -> None:
    assert [line for path in (*PAGES, *TEMPLATES) for line in _found(FIGURE, path)] == []


def test_messages_speak_of_people_not_of_their_eyes() -> None:
    assert [line for path in CODE for line in _found(re.compile(r"\beyes\b|\btired\b"), path)] == []


def test_rates_are_said_with_per() -> None:
    assert [line for path in (*PAGES, *TEMPLATES, *CODE) for line in _found(RATE, path)] == []

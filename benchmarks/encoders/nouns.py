"""Make `src/blindsight/encoders/nouns.txt`: nouns that photos show, with the classes below each.

    python -m benchmarks.encoders.nouns WORDNET SYNSETS LEMMAS VOCABULARY

WORDNET is the folder of WordNet 3.0 (data.noun, index.noun; 3.1 has other offsets), SYNSETS and
LEMMAS are imagenet_synsets.txt and imagenet_synset_to_lemma.txt of the package timm, VOCABULARY
is a tokenizer.json whose whole words count as common.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

__all__ = ["main"]

# A noun above more classes than these ("artifact") says nothing about a photo.
_MOST_CLASSES = 400
_NOTICE = (
    "Nouns and their hyponyms among the 1,000 ImageNet classes, from WordNet 3.0. Copyright 2006 "
    "by Princeton University. All rights reserved. Used under the WordNet 3.0 licence."
)


def _synsets(path: Path) -> dict[str, tuple[list[str], list[str]]]:
    """(lemmas, hypernyms) of every noun synset by its offset."""
    synsets = {}
    for line in path.read_text(encoding="latin-1").splitlines():
        if line.startswith("  "):
            continue
        parts = line.split(" | ")[0].split()
        words = int(parts[3], 16)
        lemmas = [parts[4 + 2 * i].replace("_", " ").lower() for i in range(words)]
        rest = parts[5 + 2 * words :]
        above = [rest[i + 1] for i in range(0, len(rest) - 3, 4) if rest[i] in ("@", "@i")]
        synsets[parts[0]] = (lemmas, above)
    return synsets


def _first_senses(path: Path) -> dict[str, str]:
    senses = {}
    for line in path.read_text(encoding="latin-1").splitlines():
        if not line.startswith("  "):
            parts = line.split()
            senses[parts[0].replace("_", " ")] = parts[-int(parts[2])]
    return senses


def _ranges(numbers: set[int]) -> str:
    ordered = sorted(numbers)
    cuts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(ordered)) if b > a + 1), len(ordered)]
    runs = [(ordered[a], ordered[b - 1]) for a, b in pairwise(cuts) if a < b]
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def main(wordnet: Path, synset_file: Path, lemma_file: Path, vocabulary: Path) -> str:
    """The text of the noun list."""
    synsets = _synsets(wordnet / "data.noun")
    first = _first_senses(wordnet / "index.noun")
    below: dict[str, set[int]] = defaultdict(set)
    for number, wnid in enumerate(synset_file.read_text().split()):
        waiting, seen = [wnid[1:]], set()
        while waiting:
            offset = waiting.pop()
            if offset not in seen:
                seen.add(offset)
                below[offset].add(number)
                waiting += synsets[offset][1]
    classes: dict[str, set[int]] = defaultdict(set)
    for offset, numbers in below.items():
        if len(numbers) > _MOST_CLASSES:
            continue
        for lemma in synsets[offset][0]:
            # Only the usual sense of a noun, or a class of its own: "bank" is not a seat.
            if first.get(lemma) == offset or len(numbers) == 1:
                classes[lemma] |= numbers
    common = json.loads(vocabulary.read_text(encoding="utf-8"))["model"]["vocab"]
    general, known = set(), set()
    for line in lemma_file.read_text(encoding="utf-8").splitlines():
        wnid, _, lemmas = line.partition("\t")
        for lemma in (text.strip().lower() for text in lemmas.split(",")):
            if first.get(lemma) == wnid[1:] and lemma in common and len(lemma) > 2:
                general.add(lemma)
            if lemma.isalpha() and lemma.isascii() and lemma not in common:
                known.add(lemma)
    lines = [f"# {_NOTICE}"]
    for lemma in sorted(general | known | set(classes)):
        common_noun = "+" if lemma in general else ""
        lines.append("\t".join((lemma + common_noun, _ranges(classes.get(lemma, set())))).rstrip())
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(main(*(Path(argument) for argument in sys.argv[1:5])))

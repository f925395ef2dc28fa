"""Cells made from public knowledge, the release of one per image, and its reading; for search,
sketches and tags.

| module | what |
|---|---|
| `cells` | features as unit vectors; groups of atoms, pairs of atoms, classes; Ward's clustering |
| `making` | codebooks from a network's weights, from public pictures, from labelled ones |
| `codebook` | `Codebook`: cells and budget, guarantee, file |
| `reading` | the shares of the true cells by EM, posterior, scores |
"""

from __future__ import annotations

from blindsight.codebooks.codebook import CELL, Codebook, number_of_cells
from blindsight.codebooks.making import from_classes, from_head, from_pictures
from blindsight.codebooks.reading import Reading

__all__ = [
    "CELL",
    "Codebook",
    "Reading",
    "from_classes",
    "from_head",
    "from_pictures",
    "number_of_cells",
]

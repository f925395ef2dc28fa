"""Cells made from public knowledge, the release of one per image, and its reading; for search,
sketches and tags.

| module | what |
|---|---|
| `cells` | features as unit vectors; groups of atoms, pairs of atoms, classes; Ward's clustering |
| `build` | `build_codebook`: cells from whatever is public, by one rule |
| `codebook` | `Codebook`: cells and budget, guarantee, file |
| `posterior` | the shares of the true cells by EM, posterior, scores |
"""

from __future__ import annotations

from blindsight.codebooks.build import (
    CellUse,
    PublicKnowledge,
    build_codebook,
    cell_source,
    even_use,
    from_classes,
    from_head,
    from_pictures,
    predict_use,
    text_points,
)
from blindsight.codebooks.codebook import CELL, Codebook, number_of_cells
from blindsight.codebooks.posterior import Reading

__all__ = [
    "CELL",
    "CellUse",
    "Codebook",
    "PublicKnowledge",
    "Reading",
    "build_codebook",
    "cell_source",
    "even_use",
    "from_classes",
    "from_head",
    "from_pictures",
    "number_of_cells",
    "predict_use",
    "text_points",
]

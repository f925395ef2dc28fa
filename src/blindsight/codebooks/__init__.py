"""Cells made from public knowledge, the release of one per image, and its reading; for search,
sketches and tags.

| module | what |
|---|---|
| `cells` | features as unit vectors; groups of atoms, pairs of atoms, classes; Ward's clustering |
| `build` | `build_codebook`: cells from whatever is public, by one rule |
| `codebook` | `Codebook`: cells, guarantee, file; `Reading`: shares of true cells by EM, scores |
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
from blindsight.codebooks.codebook import CELL, Codebook, Reading, number_of_cells

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

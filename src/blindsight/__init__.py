"""Learn from images, and search them, without anyone getting to see them.

Five protections, one for each point where a visual pipeline gives something away:

- `blindsight.hashing` and `blindsight.index`: private binary codes (what you store),
- `blindsight.federated`: encrypted model updates (what you share),
- `blindsight.metric`: metrics from private pairs (what you compare),
- `blindsight.sketching`: networks trained on sketches (what you send),
- `blindsight.tagging`: tags with private outputs (what you answer),

under one idea of a guarantee (`blindsight.privacy`) and one audit (`blindsight.audit`).
"""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"

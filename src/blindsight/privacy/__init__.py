"""What a guarantee is, what it costs, how it is spent.

- `guarantee`: `Cost` and `Guarantee`, frozen values that always name their unit; `disclosure` for what has no epsilon.
- `mechanisms`: the only place that draws privacy noise.
- `accounting`: what many releases cost together.
- `ledger`: the durable account that is charged before anything leaves.
- `entropy`, `clipping`: dice and bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blindsight.privacy.disclosure import Disclosure, Recovery
from blindsight.privacy.guarantee import Audited, Cost, Guarantee

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Balance, Entry, Ledger

__all__ = ["Audited", "Balance", "Cost", "Disclosure", "Entry", "Guarantee", "Ledger", "Recovery"]


def __getattr__(name: str) -> Any:
    # The ledger brings SQLAlchemy, which those who only want a mechanism need not wait for.
    if name in {"Balance", "Entry", "Ledger"}:
        from blindsight.privacy import ledger

        return getattr(ledger, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""What a guarantee is, what it costs, how it is spent.

- `cost`, `guarantee`: frozen values that always name their unit; `disclosure` for what has no
  epsilon.
- `mechanisms`: the only place that draws privacy noise; `entropy` chooses what it is made of.
- `plan`, `accounting`: what will be released, and what that costs together.
- `door`: the only way from a private value to a released one; `estimator`: what every private
  estimator shares.
- `ledger`: the durable account that is charged before anything leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blindsight.core.checks import core_module
from blindsight.privacy.accounting import Plan, Planned
from blindsight.privacy.guarantee import Assumption, Audited, Cost, Disclosure, Guarantee, Recovery

if TYPE_CHECKING:
    from blindsight.privacy.door import Door
    from blindsight.privacy.estimator import Protected
    from blindsight.privacy.ledger import Balance, Entry, Ledger
    from blindsight.privacy.vault import Vault

__all__ = [
    "Assumption",
    "Audited",
    "Balance",
    "Cost",
    "Disclosure",
    "Door",
    "Entry",
    "Guarantee",
    "Ledger",
    "Plan",
    "Planned",
    "Protected",
    "Recovery",
    "Vault",
]

_LATER = {
    **dict.fromkeys(("Balance", "Entry", "Ledger"), "ledger"),
    "Door": "door",
    "Protected": "estimator",
    "Vault": "vault",
}


def __getattr__(name: str) -> Any:
    # The ledger brings SQLAlchemy and estimators scikit-learn, which those who only want a
    # mechanism need not wait for.
    if name in _LATER:
        return getattr(core_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

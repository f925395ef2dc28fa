"""The secure sum in any Flower app: a client sends its update only as a padded contribution.

    plan      what the sites agree on: bounds, clipping, the largest number of examples
    parties   each site's folder: its own keys, the public roster, the state of its roles
    mod       the client's side, for `ClientApp(mods=[...])`
    strategy  the server's side, for `ServerApp`

Built on Flower's public Message API. Needs the extra `flower`.
"""

from __future__ import annotations

from blindsight.core.checks import optional_module

optional_module("flwr", extra="flower")

from blindsight.federated.flower.mod import (
    register_protocol,
    secure_sum_mod,
    simulated_site,
)
from blindsight.federated.flower.parties import (
    accept,
    join,
    make_roster,
    simulate_enrolment,
)
from blindsight.federated.flower.plan import SumPlan
from blindsight.federated.flower.strategy import SecureFedAvg, SecureSumMixin

__all__ = [
    "SecureFedAvg",
    "SecureSumMixin",
    "SumPlan",
    "accept",
    "join",
    "make_roster",
    "register_protocol",
    "secure_sum_mod",
    "simulate_enrolment",
    "simulated_site",
]

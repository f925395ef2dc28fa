"""The round as messages: roles that take bytes and return bytes, with no network inside."""

from blindsight.federated.enrolment import (
    AggregatorEnrolment,
    HolderEnrolment,
    KeygenEnrolment,
    Setup,
    UserEnrolment,
    enrol,
)
from blindsight.federated.protocol.aggregator import Aggregator
from blindsight.federated.protocol.holder import KeyHolder
from blindsight.federated.protocol.keygen import KeyGenerator
from blindsight.federated.protocol.simulation import (
    RoundResult,
    Simulation,
    Transcript,
    simulate_round,
)
from blindsight.federated.protocol.user import User
from blindsight.federated.role import Durable
from blindsight.federated.settings import Settings

__all__ = [
    "Aggregator",
    "AggregatorEnrolment",
    "Durable",
    "HolderEnrolment",
    "KeyGenerator",
    "KeyHolder",
    "KeygenEnrolment",
    "RoundResult",
    "Settings",
    "Setup",
    "Simulation",
    "Transcript",
    "User",
    "UserEnrolment",
    "enrol",
    "simulate_round",
]

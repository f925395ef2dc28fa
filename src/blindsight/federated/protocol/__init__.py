"""The round as messages: roles that take bytes and return bytes, with no network inside."""

from blindsight.federated.protocol.aggregator import Aggregator
from blindsight.federated.protocol.enrolment import AggregatorEnrolment, KeygenEnrolment, Setup, UserEnrolment, enrol
from blindsight.federated.protocol.holders import HolderEnrolment, KeyHolder, Opener, ThresholdSetup, enrol_holders
from blindsight.federated.protocol.keygen import KeyGenerator
from blindsight.federated.protocol.role import Durable
from blindsight.federated.protocol.settings import Settings
from blindsight.federated.protocol.simulation import RoundResult, Simulation, Transcript, simulate_round
from blindsight.federated.protocol.user import User

__all__ = [
    "Aggregator",
    "AggregatorEnrolment",
    "Durable",
    "HolderEnrolment",
    "KeyGenerator",
    "KeyHolder",
    "KeygenEnrolment",
    "Opener",
    "RoundResult",
    "Settings",
    "Setup",
    "Simulation",
    "ThresholdSetup",
    "Transcript",
    "User",
    "UserEnrolment",
    "enrol",
    "enrol_holders",
    "simulate_round",
]

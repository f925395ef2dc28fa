"""The secure sum: users' vectors are added under one-time pads, and key holders open only sums.

    pad/        one-time lattice pads that can be added
    field       F_P: tags, and Shamir's sharing of the pads' keys
    sealing     X25519 and ML-KEM-768 encryption of shares, Ed25519 signatures
    labels      which sets of users may be opened
    settings    what is agreed on
    enrolment   keys, requests and the roster, without a dealer
    messages    the formats
    user, holder, aggregator    the roles: bytes in, bytes out
    store       contributions on disk until the round ends
    simulation  all roles in one process; the median of groups' means

docs/federated-protocol.md is the specification.
"""

from blindsight.federated.sums.aggregator import Aggregator
from blindsight.federated.sums.enrolment import Enrolment, PartyKeys, Request, Role, Roster, enrol
from blindsight.federated.sums.holder import KeyHolder
from blindsight.federated.sums.messages import Outgoing, RoundSum
from blindsight.federated.sums.party import Durable
from blindsight.federated.sums.settings import Settings
from blindsight.federated.sums.simulation import (
    GroupMeans,
    RoundResult,
    Simulation,
    Transcript,
)
from blindsight.federated.sums.user import User

__all__ = [
    "Aggregator",
    "Durable",
    "Enrolment",
    "GroupMeans",
    "KeyHolder",
    "Outgoing",
    "PartyKeys",
    "Request",
    "Role",
    "Roster",
    "RoundResult",
    "RoundSum",
    "Settings",
    "Simulation",
    "Transcript",
    "User",
    "enrol",
]

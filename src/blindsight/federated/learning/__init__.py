"""What users compute before they encrypt: local learners, sparse updates, and the loop over
rounds.
"""

from blindsight.federated.learning.federation import Federation, Participant, RoundLog
from blindsight.federated.learning.linear import (
    flat,
    model_digest,
    predicted,
    scores,
    shaped,
    sparsity,
    targets,
)
from blindsight.federated.learning.local import SGD, LocalTrainer, Proximal, adapt, initial_weights
from blindsight.federated.learning.records import RecordDescent
from blindsight.federated.learning.sending import Change, CommonMask, Sending, TopK, Weights

__all__ = [
    "SGD",
    "Change",
    "CommonMask",
    "Federation",
    "LocalTrainer",
    "Participant",
    "Proximal",
    "RecordDescent",
    "RoundLog",
    "Sending",
    "TopK",
    "Weights",
    "adapt",
    "flat",
    "initial_weights",
    "model_digest",
    "predicted",
    "scores",
    "shaped",
    "sparsity",
    "targets",
]

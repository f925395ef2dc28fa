"""Audit what others built: any Python callable, an OpenDP measurement, a training run by Opacus.

    audit_callable(noisy_mean, data, neighbour, epsilon=1.0)
    audit_measurement(opendp_measurement, data, neighbour, d_in=1)
    audit_training(train, dataset, delta=1e-5)
    assert_private(noisy_mean, data, neighbour, epsilon=1.0)      # in a test: fails where refuted

Neither library is imported here: what is audited brings its own.
"""

from __future__ import annotations

from blindsight.audit.others.assertions import (
    PrivacyViolation,
    assert_private,
    assert_private_training,
)
from blindsight.audit.others.callables import audit_callable, audit_measurement
from blindsight.audit.others.training import TrainingAudit, audit_training

__all__ = [
    "PrivacyViolation",
    "TrainingAudit",
    "assert_private",
    "assert_private_training",
    "audit_callable",
    "audit_measurement",
    "audit_training",
]

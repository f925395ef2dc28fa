from __future__ import annotations

import os
import warnings

import pytest


@pytest.fixture(scope="session")
def ray_cluster():
    """Two local workers for all tests: Ray takes seconds to start."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  (15 by default: beside other tests they would starve)
    os.environ["RAY_worker_register_timeout_seconds"] = "600"  # noqa: SIM112  (60 by default, and then it starts anew)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray leaves /dev/null open while it starts
        import ray

        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
    yield ray
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.shutdown()

"""Keys made once a session. They are short, for speed: `insecure_for_tests` says so wherever one is made."""

from __future__ import annotations

import pytest

from blindsight.federated import keys
from blindsight.federated.paillier import PrivateKey


@pytest.fixture(scope="session")
def small_key() -> PrivateKey:
    return keys.generate(512, insecure_for_tests=True)


@pytest.fixture(scope="session")
def real_key() -> PrivateKey:
    return keys.generate(2048)


@pytest.fixture(scope="session", params=[1, 2, 3], ids=["s1", "s2", "s3"])
def any_degree(request: pytest.FixtureRequest) -> PrivateKey:
    return keys.generate(384, s=request.param, insecure_for_tests=True)

"""The API does what its OpenAPI document says, for requests that fit it and for many that do
not.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from workbench.asgi import Client

EXAMPLES = int(os.environ.get("BLINDSIGHT_EXAMPLES", "4"))


@pytest.fixture(scope="module")
def app(stock: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    import shutil

    from blindsight.workbench import WorkbenchSettings, create_app

    state = tmp_path_factory.mktemp("schema") / "state"
    shutil.copytree(stock, state)
    options: Any = {
        "keys": "off",
        "rate": 10**9,
        "burst": 10**9,
        "job_limit": 3,
    }
    made = create_app(WorkbenchSettings(state=state, **options))
    yield made
    made.state.workbench.budgets.close()
    made.state.workbench.database.close()


# Left out: an unsupported method on an address that pages know too is answered in their way; data
# that fit the document may still be refused (a picture's position, an image that is no image).
LEFT_OUT = {
    "unsupported_method",
    "positive_data_acceptance",
    "ignored_auth",
    "missing_required_header",
}


def test_the_api_keeps_to_its_document(app: Any) -> None:
    import schemathesis  # here: it takes seconds, in each process that collects tests
    from schemathesis import GenerationMode
    from schemathesis.checks import CHECKS

    negative = GenerationMode.NEGATIVE
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", app, headers={"Host": "127.0.0.1"})
    checks = [CHECKS.get_one(name) for name in CHECKS.get_all_names() if name not in LEFT_OUT]
    tried = 0
    for found in schema.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize="BLINDSIGHT_EXAMPLES"
            not in os.environ,  # the same few each time, others where many are tried
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(
            case=st.one_of(operation.as_strategy(), operation.as_strategy(generation_mode=negative))
        )
        def keeps(case: Any) -> None:
            case.call_and_validate(checks=checks, headers={"Host": "127.0.0.1"})

        keeps()
        tried += 1
    assert tried >= 20


def test_the_document_lists_every_address_and_its_refusals(app: Any) -> None:
    document = Client(app).get("/api/openapi.json").json()
    assert len(document["paths"]) >= 20
    for address, methods in document["paths"].items():
        for method, operation in methods.items():
            assert {"401", "422", "429"} <= set(operation["responses"]), (address, method)
            assert operation["summary"], (address, method)

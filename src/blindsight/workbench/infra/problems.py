"""Refusals: each is a code and a fixed sentence, which do not depend on the data."""

from __future__ import annotations

from typing import Any

from fastapi import HTTPException
from pydantic import BaseModel

from blindsight.core.errors import (
    BlindsightError,
    BudgetExceeded,
    HostileFile,
    InvalidData,
    InvalidParameter,
    LedgerError,
    MissingData,
    MissingDependency,
    NotProven,
    RolledBack,
    UnitMismatch,
)

__all__ = ["PROBLEMS", "Problem", "ProblemBody", "documented", "problem_for"]

# code: (status, sentence). The sentences never contain anything of a request or of the data.
PROBLEMS: dict[str, tuple[int, str]] = {
    "bad_request": (400, "The request cannot be read."),
    "forwarded": (
        400,
        "This workbench accepts no forwarded requests; name your proxy in its settings (proxies).",
    ),
    "key_needed": (401, "A valid API key is needed."),
    "not_allowed": (403, "Your rights do not include this. Ask an owner of the data set."),
    "sign_on": (
        502,
        "Signing in did not work: the identity provider cannot be reached, or its answer does not "
        "fit. Try again, or ask the administrator of the workbench.",
    ),
    "purpose_needed": (
        422,
        "This workbench requires a purpose for every release: write it into the field Purpose.",
    ),
    "cross_site": (403, "The request did not come from the workbench's own pages."),
    "not_found": (404, "Perhaps it was deleted, or the link is wrong."),
    "wrong_method": (405, "This address does not accept that method."),
    "rolled_back": (
        409,
        "Vault, ledger and releases do not agree, or this data set cannot be released any more; "
        "nothing was released. The page History says what to do.",
    ),
    "budget": (
        409,
        "The privacy budget that is left does not cover this; nothing was released.",
    ),
    "conflict": (409, "That cannot be done in the present state."),
    "too_large": (413, "The request is larger than allowed."),
    "wrong_type": (415, "This address does not accept that content type."),
    "refused_image": (
        422,
        "The image was refused: it is damaged, too large, too slow, or not an image.",
    ),
    "no_table": (422, "There is no such table in the folder, or it has no such column."),
    "whose_dicom": (
        409,
        "These are DICOM files, and a patient often has several. Choose who is protected: each "
        "person by DICOM PatientID, or each photo by itself. Nothing was read or charged.",
    ),
    "whose_folders": (
        409,
        "These folders are named like people, who then have several photos each. Choose who is "
        "protected: each person, or each photo by itself. Nothing was read or charged.",
    ),
    "large_epsilon": (
        409,
        "An epsilon above 32 protects hardly anything: the odds of a guess may grow by more than "
        "e^32. Choose a smaller one, or agree to it explicitly (accept_large_epsilon).",
    ),
    "names_unconfirmed": (
        409,
        "The names of the labels come from folders, and everybody who gets the model can read "
        "them. Look at them and confirm them first; nothing was charged.",
    ),
    "refused_invitation": (
        422,
        "This is not an invitation of a workbench, or a part of it is missing. Ask for it again.",
    ),
    "joined_before": (409, "This machine already takes part in that run."),
    "two_sites": (
        422,
        "Two sites cannot have a secure sum: each would learn the other's update by subtracting "
        "its own. Invite a second site, or train with noise in each site's own part: see With only "
        "two sites on the page Train together.",
    ),
    "too_few_to_learn": (
        409,
        "From so few photos at this ε a model would be hardly better than chance; nothing was "
        "charged. Choose a larger ε, or add photos.",
    ),
    "refused_statistics": (
        422,
        "The file cannot be used: it must be the other site's photos.statistics, made with the "
        "same labels, encoder and number of photos together as yours.",
    ),
    "too_few_labels": (
        409,
        "Too few photos of this data set have the run's labels; label some on the page Tags.",
    ),
    "too_few_photos": (
        409,
        "Too few photos were shared to measure an attack: 20 are needed.",
    ),
    "other_features": (
        409,
        "These photos were not read with the encoder of the run, which the invitation names. "
        "Choose that encoder on the page Protect, and read the folder again.",
    ),
    "not_worth_it": (
        409,
        "Published tags would say hardly more than how frequent each label is. Label more photos, "
        "and learn again.",
    ),
    "at_chance": (
        409,
        "Search would find little more than chance in this release. Choose another encoder, say "
        "what the photos are about, or agree to it on the page.",
    ),
    "bad_encoder": (
        422,
        "The folder holds no encoder that can be used. `blindsight encoder check FOLDER` says why.",
    ),
    "one_name": (
        422,
        "One word for all photos does not distinguish them. Give two or more, separated by commas, "
        "or none.",
    ),
    "invalid": (422, "The request is not what this address expects; see /docs."),
    "needs_torch": (501, "This part needs PyTorch: pip install 'blindsight[torch]'."),
    "needs_words": (
        501,
        "Search by words needs files: pip install 'blindsight[words]', then blindsight data get "
        "words.",
    ),
    "needs_cluster": (501, "This part needs more packages: pip install 'blindsight[cluster]'."),
    "too_many": (429, "Too many requests; try again in a few seconds."),
    "failed": (500, "An unexpected error occurred; nothing was released."),
    "access_log": (503, "The access log cannot be written, so no request is answered."),
    "not_ready": (503, "The workbench is not ready; the readiness page says which part is not."),
    "ledger": (503, "The ledger cannot be written or was changed; nothing was released."),
    "busy": (429, "Too many requests or jobs are waiting; try again in a few seconds."),
}


class ProblemBody(BaseModel):
    """The body of every error."""

    error: str
    message: str


class Problem(HTTPException):
    """A refusal.

    Parameters:
        code: a key of `PROBLEMS`.
    """

    def __init__(self, code: str) -> None:
        self.code = code
        status, _ = PROBLEMS[code]
        waits = {"too_many": "5", "busy": "5"}
        headers = {"Retry-After": waits[code]} if code in waits else None
        if code == "key_needed":
            headers = {"WWW-Authenticate": "Bearer"}
        super().__init__(status_code=status, headers=headers)

    @property
    def body(self) -> dict[str, str]:
        return {"error": self.code, "message": PROBLEMS[self.code][1]}


def problem_for(error: BlindsightError) -> Problem:
    """Return the refusal for an error of the library, whose message may contain data and is not
    sent.
    """
    if isinstance(error, MissingDependency):
        return Problem("needs_cluster" if "[cluster]" in str(error) else "needs_torch")
    kinds: tuple[tuple[type[BlindsightError], str], ...] = (
        (RolledBack, "rolled_back"),
        (BudgetExceeded, "budget"),
        (NotProven, "budget"),
        (UnitMismatch, "budget"),
        (HostileFile, "failed"),
        (LedgerError, "ledger"),
        (MissingData, "not_found"),
        (InvalidData, "invalid"),
        (InvalidParameter, "invalid"),
    )
    return Problem(next((code for kind, code in kinds if isinstance(error, kind)), "failed"))


def documented(*codes: str) -> dict[int | str, dict[str, Any]]:
    """Return the responses for OpenAPI: the given problems, and those of every request."""
    always = (
        "bad_request",
        "key_needed",
        "not_allowed",
        "wrong_method",
        "too_large",
        "wrong_type",
        "invalid",
    )
    responses: dict[int | str, dict[str, Any]] = {}
    for code in (*always, "too_many", "failed", *codes):
        status, sentence = PROBLEMS[code]
        # Not by `model`: FastAPI would use the media type of the successful answer, such as SVG.
        content = {"application/json": {"schema": ProblemBody.model_json_schema()}}
        responses.setdefault(status, {"description": sentence, "content": content})
    return responses

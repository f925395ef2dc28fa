"""The client's side of the secure sum in a Flower app: a mod for `ClientApp(mods=[...])`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from blindsight.core.errors import BlindsightError, InvalidData, InvalidParameter
from blindsight.federated.flower.parties import Site, site_of
from blindsight.federated.flower.plan import Model

__all__ = [
    "FOLDER_KEY",
    "LEDGER_KEY",
    "PRIVACY_KEY",
    "QUERY_TYPE",
    "RECORD_KEY",
    "SIMULATION_VARIABLE",
    "register_protocol",
    "secure_sum_mod",
    "simulated_site",
]

_log = logging.getLogger(__name__)
RECORD_KEY = "blindsight"  # the record of the protocol in a message
QUERY_TYPE = f"{MessageType.QUERY}.blindsight"  # messages that never reach the app
FOLDER_KEY = "blindsight-folder"  # the node setting that names the party's folder
LEDGER_KEY = "blindsight-ledger"  # the node setting that names the site's ledger
PRIVACY_KEY = "privacy"  # the record that tells the app the norm to which it clips records
SIMULATION_VARIABLE = "BLINDSIGHT_PARTIES"  # names the folder of a simulation's parties
_REFUSED = 1  # the code of our errors in Flower's replies
_CHALLENGE_BYTES = 32

App = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, App], Message]
FolderOf = Callable[[Context], str | Path]


def simulated_site(root: str | Path) -> FolderOf:
    """Return a function that finds a simulated node's folder.

    Parameters:
        root: the folder that `simulate_enrolment` returned.

    Returns:
        The function, for `secure_sum_mod(folder=...)`.
    """
    base = Path(root).absolute()
    return lambda context: base / f"node-{int(context.node_config['partition-id'])}"


def _folder_of_node(context: Context) -> str | Path:
    folder = context.node_config.get(FOLDER_KEY)
    if isinstance(folder, str):
        return folder
    simulated = os.environ.get(SIMULATION_VARIABLE)
    if simulated is not None and "partition-id" in context.node_config:
        return simulated_site(simulated)(context)
    raise InvalidParameter(
        f"this node has no setting {FOLDER_KEY!r}: start the SuperNode with "
        f"--node-config '{FOLDER_KEY}=\"/path/of/the/party\"', or pass folder= to the mod. A "
        f"simulation finds its parties by the variable {SIMULATION_VARIABLE}."
    )


def register_protocol(app: ClientApp) -> ClientApp:
    """Let a client app receive the protocol's own messages.

    Flower passes a query to an app's mods only if the app has a function for it. The function that
    is registered here is not called if the app has the mod, because the mod answers.

    Parameters:
        app: a client app with `secure_sum_mod` among its mods.

    Returns:
        The same app.
    """

    @app.query("blindsight")  # type: ignore[untyped-decorator, unused-ignore]
    def without_mod(message: Message, context: Context) -> Message:
        reason = "the client app lacks secure_sum_mod(): pass it as ClientApp(mods=[...])."
        return Message(Error(_REFUSED, reason), reply_to=message)

    return app


def secure_sum_mod(
    folder: str | Path | FolderOf | None = None,
    *,
    ledger: str | Path | None = None,
    dataset: str = "federation",
    plain_replies: bool = False,
    arrays_key: str = "arrays",
    weighted_by_key: str = "num-examples",
) -> Mod:
    """Return a mod that sends a client's update only as a contribution to the secure sum.

    The mod passes a training message of `SecureFedAvg` to the app. The arrays of the app's reply
    minus the received arrays are clipped, weighted by the number of examples, padded and sent.
    Nothing else of the reply is sent: no arrays, no metrics, no number of examples. A training
    message without the protocol's record never reaches the app. Put this mod first in the list.

    With a plan that has epsilon per record the app returns sums of records' clipped gradients
    (float64) in place of the new arrays; the clip is in the message's record `privacy`.

    Parameters:
        folder: the party's folder, or a function that finds it by the node's context (see
            `simulated_site`); by default the node setting `blindsight-folder`, and in a
            simulation the folder below that of the variable BLINDSIGHT_PARTIES.
        ledger: the site's ledger; by default the node setting `blindsight-ledger`. With a plan that
            has epsilon it is charged once with all rounds, before the first contribution is sent.
        dataset: the name of the site's data in the ledger.
        plain_replies: whether the app may answer evaluation messages and its own queries. These
            replies are sent unchanged, with metrics and numbers of examples.
        arrays_key: the name of the model's ArrayRecord in messages and replies.
        weighted_by_key: the metric in the app's reply that holds the number of examples.

    Returns:
        The mod, for `ClientApp(mods=[...])`; see also `register_protocol`.
    """
    find: FolderOf
    if folder is None:
        find = _folder_of_node
    elif callable(folder):
        find = folder
    else:
        fixed = Path(folder)
        find = lambda context: fixed  # noqa: E731

    def mod(message: Message, context: Context, call_next: App) -> Message:
        training = message.metadata.message_type.partition(".")[0] == MessageType.TRAIN
        record = message.content.get(RECORD_KEY) if message.has_content() else None
        if record is None:
            if plain_replies and not training:
                return call_next(message, context)
            return _refusal(message, "this client answers only messages of the secure sum.")
        try:
            with site_of(find(context)) as site:
                if "challenge" in record:
                    return _identified(site, message, record, context.node_id)
                answers = site.receive(_addressed(record), contributes=training)
                if training:
                    answers += _trained(site, message, context, call_next)
        except BlindsightError as error:
            return _refusal(message, str(error))
        return _reply(message, {"messages": answers})

    def _trained(site: Site, message: Message, context: Context, call_next: App) -> list[bytes]:
        header = site.open_round()
        if header is None:  # refused, or already contributed: the answer says so
            return []
        model = _model(message, "the server's message")
        if model.digest != header.model:
            raise InvalidData("the arrays are not those of the model that the round is bound to.")
        del message.content[RECORD_KEY]
        if site.plan.per_record and site.plan.clip is not None:
            message.content[PRIVACY_KEY] = ConfigRecord({"clip": site.plan.clip})
        try:
            reply = call_next(message, context)
        except Exception:
            # Flower would send the exception's text, which may quote the data.
            _log.exception("the app failed while it trained")
            raise InvalidData(
                "the app failed while it trained; the client's log has why."
            ) from None
        if not reply.has_content():
            raise InvalidData("the app did not train.")
        after = _model(reply, "the app's reply")
        update = after.vector
        if not site.plan.per_record:
            if after.layout != model.layout:
                raise InvalidData(
                    "the app's reply must have arrays of the names, types and shapes it received."
                )
            update = after.vector - model.vector
        elif after.shapes != model.shapes:
            raise InvalidData(
                "the app's reply must have a sum of gradients of each array's name and shape."
            )
        if site.plan.epsilon is not None:
            named = context.node_config.get(LEDGER_KEY) if ledger is None else ledger
            site.charge(None if named is None else str(named), dataset)
        return site.contribute(header, model, update, examples=_examples(reply))

    def _model(message: Message, where: str) -> Model:
        record = message.content.array_records.get(arrays_key)
        if record is None:
            raise InvalidData(f"{where} has no ArrayRecord {arrays_key!r}.")
        return Model.of_record(record)

    def _examples(reply: Message) -> float:
        for metrics in reply.content.metric_records.values():
            count = metrics.get(weighted_by_key)
            if isinstance(count, int | float):
                return float(count)
        raise InvalidData(f"the app's reply has no metric {weighted_by_key!r}.")

    return mod


def _addressed(record: ConfigRecord) -> list[tuple[int, bytes]]:
    numbers, messages = record.get("to"), record.get("messages")
    if (
        not isinstance(numbers, list)
        or not isinstance(messages, list)
        or len(numbers) != len(messages)
        or not all(isinstance(number, int) for number in numbers)
        or not all(isinstance(data, bytes) for data in messages)
    ):
        raise InvalidData("the protocol's record must hold messages and whom they are for.")
    return list(zip(numbers, messages, strict=True))


def _identified(site: Site, message: Message, record: ConfigRecord, node: int) -> Message:
    """Reply with a signed statement of the party at this node, and user 1's sealed tag seeds."""
    challenge = record["challenge"]
    if not isinstance(challenge, bytes) or len(challenge) != _CHALLENGE_BYTES:
        raise InvalidData(f"a challenge must have {_CHALLENGE_BYTES} bytes.")
    answer: dict[str, Any] = {
        "parties": site.addresses,
        "proof": site.prove(challenge, node),
        "messages": site.seeds() if record.get("seeds") is True else [],
    }
    return _reply(message, answer)


def _reply(message: Message, record: dict[str, Any]) -> Message:
    return Message(RecordDict({RECORD_KEY: ConfigRecord(record)}), reply_to=message)


def _refusal(message: Message, reason: str) -> Message:
    return Message(Error(_REFUSED, reason), reply_to=message)

"""What a billion images and 10,000 federated users need, from measured rates: `plan` computes,
`fill_page` writes.

Rates are CPU seconds of one core and bytes. The plan multiplies; it assumes that work which is
independent image by image spreads over cores, and that growth is linear, which `bench.growth`
measures beside it.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from benchmarks.harness import Row, markdown_table, read_report
from blindsight.core.errors import InvalidData

__all__ = [
    "BEGIN",
    "END",
    "QUERIES",
    "Federation",
    "federation",
    "fill_page",
    "plan",
    "rate_rows",
    "table",
]

QUERIES = 16
IMAGES = 1_000_000_000
USERS = 10_000
DIMENSION = 206_848  # 2,048 features times 101 classes, as in Table 2 of the DPHE paper
BEGIN, END = "<!-- plan:begin -->", "<!-- plan:end -->"


def plan(rates: Mapping[str, float], *, images: int = IMAGES, users: int = USERS) -> list[Row]:
    """Rows `growth.plan.*` from the rows of `growth`: cores, hours, bytes; each names the rates it
    came from.
    """
    rows: list[Row] = []

    def add(name: str, value: float, unit: str, *sources: str) -> None:
        rows.append(
            Row(id=f"growth.plan.{name}", value=value, unit=unit, note="from " + ", ".join(sources))
        )

    hashing, sketching = "growth.hashing.100000", "growth.sketching.10000"
    search, encryption = "growth.search.1000000", "growth.encryption.100000"
    code = rates[hashing] / 100_000
    # Without the network installed, photos are hashed by their pixels.
    photo = [name for name in ("growth.rate.photo", "growth.rate.features") if name in rates]
    hashed = images * (sum(rates[name] for name in photo) + code)
    from_rates = (*photo, hashing)
    sketched = images * rates[sketching] / 10_000
    add("hash_core_hours", hashed / 3600, "core hours to hash them", *from_rates)
    add("hash_cores", hashed / 86_400, "cores to hash them in a day", *from_rates)
    add(
        "index_gigabytes",
        images * rates["growth.rate.code_bytes"] / 1e9,
        "GB of codes",
        "growth.rate.code_bytes",
    )
    query = images * rates[search] / (QUERIES * 1_000_000)
    add("query_core_seconds", query, "core seconds per query, exact scan", search)
    add("search_cores", 10 * query, "cores for 10 queries per second, exact scan", search)
    add("sketch_core_hours", sketched / 3600, "core hours to sketch them (28 x 28)", sketching)
    add("sketch_cores", sketched / 86_400, "cores to sketch them in a day", sketching)
    add(
        "sketch_terabytes",
        images * rates["growth.rate.sketch_bytes"] / 1e12,
        "TB of sketches",
        "growth.rate.sketch_bytes",
    )
    blocks = rates["growth.rate.update_blocks"]
    add(
        "update_megabytes",
        rates["growth.rate.update_bytes"] / 1e6,
        "MB sent by a user per round",
        "growth.rate.update_bytes",
    )
    add(
        "update_seconds",
        rates[encryption] * DIMENSION / 100_000,
        "CPU s of a user per round",
        encryption,
    )
    add(
        "received_gigabytes",
        users * rates["growth.rate.update_bytes"] / 1e9,
        "GB received by the aggregator per round",
        "growth.rate.update_bytes",
    )
    add(
        "aggregator_core_hours",
        users * blocks * rates["growth.rate.add_block"] / 3600,
        "core hours of the aggregator per round",
        "growth.rate.add_block",
        "growth.rate.update_blocks",
    )
    add(
        "aggregator_gigabytes",
        (
            blocks * rates["growth.rate.aggregator_bytes_block"]
            + rates["growth.rate.aggregator_bytes_once"]
        )
        / 1e9,
        "GB of the aggregator's memory",
        "growth.rate.aggregator_bytes_block",
        "growth.rate.aggregator_bytes_once",
        "growth.rate.update_blocks",
    )
    add(
        "holder_seconds",
        USERS * rates["growth.rate.holder_share"],
        "CPU s of one key holder per round",
        "growth.rate.holder_share",
    )
    return rows


def rate_rows(*, quick: bool, seed: int = 0) -> Iterator[Row]:
    """The rates that the growth curves do not give: rows `growth.rate.*`."""
    yield from _image_rates(quick, seed)
    agreed = federation(dimension=DIMENSION)
    blocks = agreed.blocks
    yield Row(
        id="growth.rate.update_blocks",
        value=blocks,
        unit="blocks",
        note=f"{DIMENSION:,} weights, {USERS:,} users",
    )
    yield Row(
        id="growth.rate.update_bytes",
        value=agreed.message_bytes,
        unit="bytes",
        note="header and signature included",
    )
    yield Row(
        id="growth.rate.holder_share",
        value=agreed.holder_seconds(3 if quick else 20),
        unit="CPU s",
        note="a user's share verified, decrypted and added by a key holder, one core",
    )
    yield from _aggregator_rates(quick, seed)


def _image_rates(quick: bool, seed: int) -> Iterator[Row]:
    from PIL import Image

    from blindsight.data import read_image, to_rgb
    from blindsight.index import HammingIndex
    from blindsight.sketching import NegativeSketcher

    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        photo, index = Path(folder) / "photo.jpg", Path(folder) / "codes.index"
        smooth = np.asarray(
            Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((1024, 768))
        )
        Image.fromarray(smooth).save(photo, quality=90)
        yield Row(
            id="growth.rate.photo",
            value=_least(lambda: to_rgb(read_image(photo), 128)),
            unit="CPU s",
            note="a JPEG of 1024 x 768 read, checked and made small",
        )
        with HammingIndex.create(index, 64) as made:
            for _ in range(10):
                made.add(rng.integers(0, 256, (10_000, 8), dtype=np.uint8))
        yield Row(
            id="growth.rate.code_bytes",
            value=index.stat().st_size / 100_000,
            unit="bytes",
            note="64 bits and id",
        )
    if importlib.util.find_spec("efficientnet_lite_pytorch") and importlib.util.find_spec("torch"):
        yield _features(rng, 16 if quick else 64)
    sketcher = NegativeSketcher("Q3", random_state=seed).fit(np.zeros((1, 28, 28), np.uint8))
    size = sketcher.transform(np.zeros((1, 28, 28), np.uint8)).nbytes
    yield Row(
        id="growth.rate.sketch_bytes",
        value=size,
        unit="bytes",
        note="an image of 28 x 28 as counts",
    )


def _features(rng: np.random.Generator, count: int) -> Row:
    import torch

    from blindsight.encoders import EfficientNet

    images = rng.integers(0, 256, (count, 128, 128, 3), dtype=np.uint8)
    network = EfficientNet(size=128, cache=False)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = _least(lambda: network.transform(images)) / count
    finally:
        torch.set_num_threads(before)
    return Row(
        id="growth.rate.features",
        value=seconds,
        unit="CPU s",
        note="EfficientNet-Lite0 at 128 x 128, a photo",
    )


def _aggregator_rates(quick: bool, seed: int) -> Iterator[Row]:
    """What a contribution costs the aggregator in time, and all of them in memory, a block."""
    rng = np.random.default_rng(seed)
    some = federation(dimension=20_000)
    messages = [some.contribute(user, rng.uniform(-1, 1, 20_000)) for user in range(1, 5)]
    aggregator = some.aggregator()
    aggregator.receive(messages[0])  # the first is only stored
    start = time.process_time()
    for message in messages[1:]:
        aggregator.receive(message)
    each = (time.process_time() - start) / (len(messages) - 1)
    yield Row(
        id="growth.rate.add_block",
        value=each / some.blocks,
        unit="CPU s",
        note="checked, unpacked, added; the key multiplied",
    )
    count = 20 if quick else 100
    block, once = _held_by(USERS, count)
    measured = f"for {USERS:,} users, measured with {count:,}"
    yield Row(
        id="growth.rate.aggregator_bytes_block",
        value=block,
        unit="bytes",
        note=f"the aggregator's memory a block, {measured}",
    )
    yield Row(
        id="growth.rate.aggregator_bytes_once",
        value=once,
        unit="bytes",
        note=f"the aggregator's memory whatever the number of blocks, {measured}",
    )


def _held_by(users: int, count: int) -> tuple[float, float]:
    """Bytes a block and bytes beside, for `users`, from the memory of `count` at two numbers of
    blocks.

    What is kept of a user beside the sum grows with the users; the sum itself does not.
    """
    few, many = 1, 3
    first, second = _memory(few, count), _memory(many, count)
    block = max(0.0, (second - first) / (many - few))
    return block, max(0.0, first - few * block) * users / count


def _memory(blocks: int, count: int) -> int:
    """Bytes that an aggregator holds after `count` contributions of some blocks."""
    size = blocks * federation(dimension=DIMENSION).slots
    small = federation(dimension=size)
    sent = [small.contribute(user, np.full(size, 0.5)) for user in range(1, count + 1)]
    aggregator = small.aggregator()
    tracemalloc.start()
    for message in sent:
        aggregator.receive(message)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    if len(aggregator.contributors) != count:
        raise InvalidData("the aggregator refused contributions that it should have taken.")
    return held


class Federation:
    """Enrolled users of one agreement, for measuring: contributions and an aggregator without a
    network.
    """

    def __init__(self, dimension: int) -> None:
        from blindsight.federated.sums import Role, Settings, enrol

        self.settings = Settings(dimension=dimension, users=USERS, holders=5)
        parties = enrol(self.settings)
        self._users, self._collector = parties[Role.USER], parties[Role.AGGREGATOR][0]
        self._holder = parties[Role.HOLDER][-1]
        self._opening = self.aggregator().reopen(1)[0].data

    @property
    def blocks(self) -> int:
        """Blocks of a padded update."""
        return self.settings.pad(self.settings.dimension).blocks(self.settings.dimension)

    @property
    def slots(self) -> int:
        """Weights of one block."""
        return self.settings.pad(self.settings.dimension).block

    def holder_seconds(self, users: int) -> float:
        """CPU seconds that a key holder needs for one user's share."""
        from blindsight.federated.sums import KeyHolder
        from blindsight.federated.sums.messages import Collect, Message, pack_members

        role = KeyHolder(self._holder)
        aggregator = self.aggregator()
        update = np.zeros(self.settings.dimension)
        for user in range(1, users + 1):
            aggregator.receive(self.contribute(user, update))
        aggregator._members = pack_members(aggregator.contributors, USERS)
        [question] = aggregator.ask(role.number)
        message = Message.decode(question.data, largest=len(question.data))
        body = Collect.decode(message.body, self.settings, message.header.length, role.index)
        work = lambda: role._summed(message.header, body, aggregator.members)  # noqa: E731
        return _least(work) / users

    @property
    def message_bytes(self) -> int:
        """Bytes of an update."""
        from blindsight.federated.sums.messages import contribution_bytes

        return contribution_bytes(self.settings, self.settings.dimension)

    def contribute(self, user: int, update: ArrayLike) -> bytes:
        """A user's whole part in a round: fixed point, tag, pad, sealed shares, signing."""
        from blindsight.federated.sums import User

        member = User(self._users[user - 1])
        member.receive(self._opening)
        return member.contribute(update)[0].data

    def aggregator(self) -> Any:
        """An aggregator whose round is open."""
        from blindsight.federated.sums import Aggregator

        made = Aggregator(self._collector)
        made.open_round(1, bytes(32))
        return made


def federation(*, dimension: int) -> Federation:
    """10,000 users who agreed on updates of that length."""
    return Federation(dimension)


def _least(work: Callable[[], Any], repeats: int = 3) -> float:
    """The least CPU time of a few calls, after one that warms up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def table(report: Mapping[str, Any]) -> str:
    """The plan of a report as a Markdown table."""
    rows = [row for row in report["rows"] if row["id"].startswith("growth.plan.")]
    cells = [(row["unit"], _round(row["value"]), row["note"].removeprefix("from ")) for row in rows]
    return "\n".join(markdown_table(("need", "", "computed from"), cells))


def fill_page(report: str | Path, page: str | Path) -> None:
    """Write the plan of a report between the markers of a page."""
    target = Path(page)
    text = target.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise InvalidData(f"{target} must hold {BEGIN} and {END} once each.")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    target.write_text(f"{before}{BEGIN}\n{table(read_report(report))}\n{END}{after}")


def _round(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

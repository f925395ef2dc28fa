"""The page Answer: the owner sees what is asked for and decides; nothing is sent, all is noted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from blindsight.app.library.accounts import vault_of
from blindsight.app.protect import protect
from blindsight.index.release_folder import ReleaseFolder
from workbench.asgi import Client


def _request(app: Any) -> tuple[dict[str, Any], Any]:
    """A request for three photos of the release, and its data set."""
    datasets = app.state.workbench.datasets
    (data_set,) = datasets.listed()
    (release,) = data_set.releases
    number = ReleaseFolder.read(datasets.folder(release)).release
    ids = sorted(vault_of(datasets, data_set).codes(number))[:3]
    fields = {"format": "blindsight request 1", "release": number, "ids": ids, "query": {}}
    return fields | {"message": "for a study"}, data_set


def test_the_owner_sees_the_photos_decides_and_everything_is_noted(
    make: Callable[..., Any], stocked: Path
) -> None:
    app = make(state=stocked)
    assert "request.json" in Client(app).get("/answer").text
    client = Client(app)
    request, data_set = _request(app)
    answer = client.post(
        f"/api/answers/{data_set.id}", json=request | {"ids": [*request["ids"], "0" * 32]}
    )
    assert answer.status_code == 200, answer.text
    asked = answer.json()
    assert [photo["id"] for photo in asked["photos"]] == request["ids"]
    assert (asked["unknown"], asked["message"]) == (1, "for a study")
    for photo in asked["photos"]:
        small = client.get(f"/api/datasets/{data_set.id}/photos/{photo['id']}")
        assert small.headers["content-type"] == "image/jpeg"
    assert not (stocked / "handed over").exists(), "looking hands over nothing"
    chosen = request["ids"][1:]
    made = client.post(
        f"/api/answers/{data_set.id}/copies", json={"request": request, "chosen": chosen}
    )
    assert made.status_code == 201, made.text
    folder = Path(made.json()["folder"])
    names = {photo["id"]: photo["name"] for photo in asked["photos"]}
    copies = sorted(folder.iterdir())
    originals = [Path(data_set.source) / names[key] for key in chosen]
    assert [path.read_bytes() for path in copies] == [path.read_bytes() for path in originals]
    log = vault_of(app.state.workbench.datasets, data_set).path / "requests.log"
    first, second = (json.loads(line) for line in log.read_text().splitlines())
    assert (first["photos"], first["unknown"], second["handed_over"]) == (3, 1, 2)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"release": "0" * 32}, 404),
        ({"format": "blindsight request 9"}, 422),
        ({"ids": ["x"] * 1001}, 422),
        ({"ids": [{"a": 1}]}, 422),
        ({"message": "x" * 2001}, 422),
        ({"more": 1}, 422),
    ],
)
def test_a_hostile_request_is_refused(
    make: Callable[..., Any], stocked: Path, change: dict[str, Any], status: int
) -> None:
    app = make(state=stocked)
    request, data_set = _request(app)
    assert (
        Client(app).post(f"/api/answers/{data_set.id}", json=request | change).status_code == status
    )


def test_only_what_was_asked_for_is_copied(make: Callable[..., Any], stocked: Path) -> None:
    app = make(state=stocked)
    request, data_set = _request(app)
    other = {"request": request | {"ids": request["ids"][:1]}, "chosen": request["ids"][1:]}
    assert Client(app).post(f"/api/answers/{data_set.id}/copies", json=other).status_code == 409
    assert not (stocked / "handed over").exists()


def test_a_received_release_is_verified_and_searched_in_an_origin_of_its_own(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(3):
        color = (60 * number, 90, 200)
        Image.new("RGB", (64, 64), color).save(tmp_path / "photos" / f"secret name {number}.png")
    root = tmp_path / "inbox"
    root.mkdir()
    made = protect(tmp_path / "photos", root / "coast", encoder="pixels")
    client = Client(make(photos=(root,)))
    assert 'href="/received?folder=' in client.get("/received").text
    opened = client.get("/received", params={"folder": "coast"}).text
    assert "sender not verified" in opened and made.fingerprint in opened
    assert "Public examples, not their photos." in opened and "3 entries" in opened
    told = {"folder": "coast", "fingerprint": made.fingerprint}
    assert "sender verified" in client.get("/received", params=told).text
    page = client.get("/received/search.html", params=told)
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "sandbox allow-scripts" in policy and "connect-src 'none'" in policy
    assert "allow-same-origin" not in policy
    other = {"folder": "coast", "fingerprint": "0" * len(made.fingerprint)}
    assert "Do not use this release" in client.get("/received", params=other).text
    assert client.get("/received/search.html", params=other).status_code == 409
    outside = client.get("/received", params={"folder": str(tmp_path / "photos")}).text
    assert "Do not use this release" in outside
    card = root / "coast" / "card.json"
    card.write_bytes(card.read_bytes().replace(b"3", b"4", 1))
    assert "Do not use this release" in client.get("/received", params={"folder": "coast"}).text
    assert client.get("/received/search.html", params={"folder": "coast"}).status_code == 409

"""Keywords of photos: read from XMP and IPTC fields, written as XMP sidecars.

Photo managers keep keywords in `dc:subject`, and hierarchies (`animal|dog`) in
`lr:hierarchicalSubject`; older programs in the IPTC field 2:25. A sidecar is a file `photo.jpg.xmp`
or `photo.xmp` beside the photo, as Lightroom, darktable and digiKam read and write them.
"""

from __future__ import annotations

import contextlib
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from blindsight.core.errors import BlindsightError
from blindsight.data.limits import LIMITS, read_bytes

__all__ = ["embedded_keywords", "photo_keywords", "sidecar_text"]

_MOST_XMP = 1 << 20
_MOST_KEYWORDS = 2000
_RDF = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"
_SUBJECTS = (
    "{http://purl.org/dc/elements/1.1/}subject",
    "{http://ns.adobe.com/lightroom/1.0/}hierarchicalSubject",
    "{http://www.digikam.org/ns/1.0/}TagsList",
)
_XMP_START, _XMP_END = b"<x:xmpmeta", b"</x:xmpmeta>"
_PHOTOSHOP = b"Photoshop 3.0\x00"
_IPTC_RESOURCE, _KEYWORD = 0x0404, (2, 25)


def photo_keywords(path: Path) -> set[str]:
    """The keywords of one photo: inside the file, and in sidecars beside it.

    A file that cannot be read, or that holds no valid fields, has no keywords.

    Parameters:
        path: the photo.

    Returns:
        Each level of a hierarchy is a keyword of its own.
    """
    found: set[str] = set()
    with contextlib.suppress(BlindsightError):
        found |= embedded_keywords(read_bytes(path, largest=LIMITS.image_bytes))
    for sidecar in (path.with_name(path.name + ".xmp"), path.with_suffix(".xmp")):
        if sidecar.is_file():
            try:
                found |= _levels(_xmp(read_bytes(sidecar, largest=_MOST_XMP)))
            except BlindsightError:
                continue
    return found


def embedded_keywords(data: bytes) -> set[str]:
    """The keywords inside an image file's bytes."""
    words = list(_iptc(data))
    start = data.find(_XMP_START)
    if start >= 0:
        end = data.find(_XMP_END, start, start + _MOST_XMP)
        if end >= 0:
            words += _xmp(data[start : end + len(_XMP_END)])
    return _levels(words)


def sidecar_text(keywords: Iterable[str]) -> str:
    """The text of an XMP sidecar that holds these keywords.

    `animal|dog` is a keyword with a level above it: both levels are written as `dc:subject`, and
    the whole as `lr:hierarchicalSubject`.

    Examples:
        >>> text = sidecar_text(["animal|dog", "beach & sea"])
        >>> sorted(_levels(_xmp(text.encode())))
        ['animal', 'beach & sea', 'dog']
    """
    paths = sorted(set(keywords))
    plain = _bag(sorted(_levels(paths)))
    whole = _bag(paths)
    return (
        '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n'
        '<x:xmpmeta xmlns:x="adobe:ns:meta/">\n'
        ' <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">\n'
        '  <rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/"\n'
        '    xmlns:lr="http://ns.adobe.com/lightroom/1.0/">\n'
        f"   <dc:subject>{plain}</dc:subject>\n"
        f"   <lr:hierarchicalSubject>{whole}</lr:hierarchicalSubject>\n"
        "  </rdf:Description>\n </rdf:RDF>\n</x:xmpmeta>\n"
        '<?xpacket end="w"?>\n'
    )


def _bag(words: Iterable[str]) -> str:
    items = "".join(f"\n     <rdf:li>{escape(word)}</rdf:li>" for word in words)
    return f"\n    <rdf:Bag>{items}\n    </rdf:Bag>\n   "


def _xmp(packet: bytes) -> list[str]:
    """The keywords of an XMP packet; a document type is refused, because it can define entities."""
    start = packet.find(_XMP_START)
    if start < 0 or b"<!" in packet:
        return []
    try:
        root = ElementTree.fromstring(packet[start : packet.rfind(b">") + 1].split(b"<?xpacket")[0])  # noqa: S314
    except (ElementTree.ParseError, ValueError):
        return []
    words = []
    for name in _SUBJECTS:
        for subject in root.iter(name):
            items = subject.iter(f"{_RDF}li")
            separator = "/" if name.endswith("TagsList") else "|"
            words += [(item.text or "").replace(separator, "|") for item in items]
    return words[:_MOST_KEYWORDS]


def _iptc(data: bytes) -> Iterator[str]:
    """The IPTC keywords of a JPEG file's Photoshop segments."""
    at = 2
    if data[:2] != b"\xff\xd8":
        return
    while at + 4 <= len(data) and data[at] == 0xFF and data[at + 1] != 0xDA:
        size = int.from_bytes(data[at + 2 : at + 4], "big")
        if size < 2:
            return
        segment = data[at + 4 : at + 2 + size]
        if data[at + 1] == 0xED and segment.startswith(_PHOTOSHOP):
            for block in _resources(segment[len(_PHOTOSHOP) :]):
                yield from _records(block)
        at += 2 + size


def _resources(segment: bytes) -> Iterator[bytes]:
    at = 0
    while segment[at : at + 4] == b"8BIM" and at + 12 <= len(segment):
        number = int.from_bytes(segment[at + 4 : at + 6], "big")
        name = 1 + segment[at + 6]
        at += 6 + name + name % 2
        size = int.from_bytes(segment[at : at + 4], "big")
        if number == _IPTC_RESOURCE:
            yield segment[at + 4 : at + 4 + size]
        at += 4 + size + size % 2


def _records(block: bytes) -> Iterator[str]:
    at = 0
    while at + 5 <= len(block) and block[at] == 0x1C:
        kind = (block[at + 1], block[at + 2])
        size = int.from_bytes(block[at + 3 : at + 5], "big")
        if kind == _KEYWORD:
            yield block[at + 5 : at + 5 + size].decode("utf-8", errors="replace")
        at += 5 + size


def _levels(words: Iterable[str]) -> set[str]:
    parts = (part for word in words for part in word.split("|"))
    return {" ".join(unicodedata.normalize("NFC", part).split()) for part in parts} - {""}

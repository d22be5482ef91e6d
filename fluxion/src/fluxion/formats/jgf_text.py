"""Reads regular JGF text as columns, so that a graph of 650,000 vertices loads in seconds.

Nearly all vertices of a large document differ only in their digits. So the text of a piece is cut
into objects, and the digits are taken out of each. Objects that are then equal (one *form*) are
read together: their digits become the columns of one matrix, in C. Whether a form is plain is
decided once per form. Only ``jgf`` calls this, and its parser reads what is not plain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fluxqueue.graph.arrays import Vector

MAX_FORMS = 1000
"""Number of forms to remember.

A document with more is not regular, and is read object by object.
"""
LIMIT = 10**18
"""Larger numbers are left to the parser, which refuses them with their name."""

_DIGITS = b"0123456789"
_TO_SPACES = bytes(c if c in _DIGITS else 32 for c in range(256))
_NODE = re.compile(
    rb'\{\s*"id"\s*:\s*""\s*,\s*"metadata"\s*:\s*\{\s*"type"\s*:\s*"([A-Za-z_]+)"\s*,'
    rb'\s*"id"\s*:\s*+(-?)\s*,\s*"rank"\s*:\s*+(-?)\s*,'
    rb'\s*"paths"\s*:\s*\{\s*"containment"\s*:\s*"((?:/[^"\\/\x00-\x1f]*)+)"\s*\}\s*\}\s*\}'
)
_EDGE = re.compile(rb'\{\s*"source"\s*:\s*""\s*,\s*"target"\s*:\s*""\s*\}')
_START = re.compile(rb'\}(\s*,\s*)\{(\s*)"(id|source)"(\s*):(\s*)')
_RUN = re.compile(rb"[0-9]+")
_NUMBERS_OF_A_NODE = 3


@dataclass(slots=True)
class Form:
    """What all vertices of one form share: type, depth of the path, and position of its numbers."""

    kind: str
    numbers: int
    id_sign: int
    rank_sign: int


@dataclass(slots=True)
class PlainNodes:
    """Vertices of one form: positions in the piece, and a column for each number.

    ``above`` has the path of each vertex's parent, as an index into ``above_texts``.
    """

    kind: str
    positions: Vector
    outer_ids: Vector
    ids: Vector
    ranks: Vector
    above: Vector
    above_texts: list[str]


def split_objects(piece: bytes) -> list[bytes]:
    """Return the objects of a piece of an array, as text.

    A cut is made only before ``{"id":`` or ``{"source":``. A quote cannot occur unescaped inside a
    JSON string, so every cut lies between two objects. Nested objects give parts that do not parse.
    """
    found = _START.search(piece)
    if found is None:
        return [piece]
    cut = found[0]
    middle = cut[:1] + found[1]
    parts = piece.split(cut)
    start = cut[len(middle) :]
    return [
        *(part + b"}" if i == 0 else start + part + b"}" for i, part in enumerate(parts[:-1])),
        start + parts[-1],
    ]


class PlainReader:
    """Groups the objects of one piece after another by form."""

    def __init__(self) -> None:
        self._forms: dict[bytes, Form | None] = {}

    def nodes(self, objects: list[bytes]) -> Iterator[PlainNodes]:
        """Yield groups of plain vertices. The parser reads what is in no group."""
        groups: dict[bytes, list[int]] = {}
        for position, text in enumerate(objects):
            groups.setdefault(text.translate(None, _DIGITS), []).append(position)
        for bare, positions in groups.items():
            form = self._form_of(bare, objects[positions[0]])
            if form is not None:
                found = _read_group(form, objects, positions, len(bare))
                if found is not None:
                    yield found

    def _form_of(self, bare: bytes, sample: bytes) -> Form | None:
        if bare in self._forms:
            return self._forms[bare]
        if len(self._forms) >= MAX_FORMS:
            return None
        self._forms[bare] = form = _find_form(bare, sample)
        return form


def _find_form(bare: bytes, sample: bytes) -> Form | None:
    match = _NODE.fullmatch(bare.strip())
    if match is None:
        return None
    kind, path = match[1], match[4]
    # A plain vertex is named by its type and id, which are the last two numbers of its text.
    if path.rpartition(b"/")[2] != kind or not sample.rstrip(b'"} \t\r\n')[-1:].isdigit():
        return None
    count = len(_RUN.findall(sample))
    if count <= _NUMBERS_OF_A_NODE:
        return None
    return Form(kind.decode(), count, -1 if match[2] else 1, -1 if match[3] else 1)


def _read_group(
    form: Form, objects: list[bytes], positions: list[int], bare_length: int
) -> PlainNodes | None:
    texts = [objects[i] for i in positions]
    line = b"\n".join(texts)
    digits = len(line) - (len(texts) - 1) - bare_length * len(texts)
    numbers = read_numbers(line, digits, len(texts), form.numbers)
    if numbers is None:
        return None
    ids, last = numbers[:, 1], numbers[:, -1]
    if form.id_sign < 0 or not np.array_equal(ids, last):
        return None
    prefix = numbers[:, _NUMBERS_OF_A_NODE:-1]
    # Siblings follow each other, so one text is enough for each run of equal prefixes.
    is_new = np.ones(len(texts), dtype=np.bool_)
    if len(texts) > 1:
        is_new[1:] = (prefix[1:] != prefix[:-1]).any(axis=1)
    firsts = np.flatnonzero(is_new).tolist()
    return PlainNodes(
        form.kind,
        np.asarray(positions, dtype=np.int64),
        numbers[:, 0],
        ids,
        numbers[:, 2] * form.rank_sign,
        np.cumsum(is_new) - 1,
        [_above(texts[i]) for i in firsts],
    )


def _above(text: bytes) -> str:
    return text[text.rindex(b'"/') + 1 : text.rindex(b"/")].decode()


def read_numbers(line: bytes, digits: int, rows: int, count: int) -> Vector | None:
    """Return the numbers of a text as ``rows`` x ``count``.

    None means that a number is unusual (leading zeros, more than 18 digits). ``digits`` is the
    number of digits in the text.
    """
    found = np.fromstring(line.translate(_TO_SPACES), dtype=np.int64, sep=" ")
    if len(found) != rows * count:
        return None
    largest = int(found.max(initial=0))
    if largest >= LIMIT:
        return None
    # Leading zeros show as an excess of digits.
    needed, bound = len(found), 10
    while bound <= largest:
        needed += int(np.count_nonzero(found >= bound))
        bound *= 10
    return found.reshape(rows, count) if needed == digits else None


def read_edges(piece: bytes) -> Vector | None:
    """Return sources and targets of a piece of plain edges, or None if some are not plain."""
    bare = piece.strip().translate(None, _DIGITS)
    first = _EDGE.match(bare)
    if first is None:
        return None
    joint = re.match(rb"\s*,\s*", bare[first.end() :])
    template = first[0] + (joint[0] if joint else b"")
    times = (len(bare) + len(template) - len(first[0])) // len(template)
    if template * (times - 1) + first[0] != bare:
        return None
    return read_numbers(piece, len(piece.strip()) - len(bare), times, 2)

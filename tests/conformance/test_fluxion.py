"""Fluxion's own recorded cases: the same arguments and commands must give the same bytes.

267 runs of flux-sched's resource-query (v0.54), from its shell tests. They live beside the
repository (``FLUXQUEUESHARED`` overrides) and are skipped where they are not at hand.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from fluxion.resource_query import main
from tests.support.upstream import SHARED

_CORPUS = SHARED / "fluxion-conformance"
_CASES = sorted((_CORPUS / "cases").glob("*.json.gz"))

EXCEPTIONS = {
    "t3008-resource-cancel.022": "a job stays behind that holds nothing: where the filters sum "
    "none of its types, partial cancel finds no job2span at the racks and leaves their tags, so "
    "it never learns that everything was given back (dfu_impl_t::mod_agfilter)",
    "t3028-resource-grow.008": "a reservation at 7200 although a node that was attached is free "
    "from 3600: planner::update_total changes points without re-sorting the mintime tree that "
    "avail_time_first searches",
}
"""Case id -> the Fluxion defect that its recorded output rests on. At most three."""


def load_case(path: Path) -> dict[str, Any]:
    with gzip.open(path) as file:
        case: dict[str, Any] = json.load(file)
        return case


def replay(case: dict[str, Any], out: Path) -> str:
    """Run a case in the corpus folder. Returns what was written to the ``-t`` file."""
    arguments = [str(out) if a == "OUT" else a for a in case["args"]]
    before = Path.cwd()
    os.chdir(_CORPUS)
    try:
        main(arguments, standard_input=case["commands"])
    finally:
        os.chdir(before)
    return out.read_text(encoding="utf-8") if out.exists() else ""


@pytest.mark.skipif(not _CASES, reason=f"no Fluxion cases under {_CORPUS}")
def test_corpus_is_complete() -> None:
    """All 267 cases are there, and exceptions name existing ones only."""
    names = {path.name.removesuffix(".json.gz") for path in _CASES}
    assert len(names) == 267
    assert EXCEPTIONS.keys() <= names
    assert len(EXCEPTIONS) <= 3


@pytest.mark.parametrize("path", _CASES, ids=lambda p: p.name.removesuffix(".json.gz"))
def test_same_bytes_as_fluxion(path: Path, tmp_path: Path) -> None:
    """The output is Fluxion's, byte for byte."""
    case = load_case(path)
    if case["id"] in EXCEPTIONS:
        pytest.skip(EXCEPTIONS[case["id"]])
    assert replay(case, tmp_path / "out") == case["expected"]

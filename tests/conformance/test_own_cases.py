"""458 cases of this project: Fluxion v0.54 recorded the answers, byte for byte.

Graphs, jobspecs and commands are this project's own work. ``fluxion-cases.tar.xz`` has the inputs
and a line of ``cases.jsonl`` for each case: arguments, commands, the ``-t`` file (``expected``) and
what ``info`` and ``list`` printed (``told``). ``exceptions.json`` names the cases whose answer
rests on a defect of Fluxion, and those that differ on purpose, each with its reason.
"""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

from fluxion.resource_query import main

_HERE = Path(__file__).parent
_PACKED = _HERE / "fluxion-cases.tar.xz"
_MATCHER_PAGE = _HERE.parents[1] / "docs" / "developer" / "matcher.md"

_NOTED = json.loads((_HERE / "exceptions.json").read_text(encoding="utf-8"))
REASONS: dict[str, str] = _NOTED["reasons"]
EXCEPTIONS: dict[str, list[str]] = _NOTED["cases"]
_GROUPS = 20
_LISTED = re.compile(r"^INFO: (\d+, [A-Z]+, -?\d+, .*), [\d.e-]+$", re.MULTILINE)
"""A line of ``info`` or ``list``, without the measured time."""


def _read_cases() -> list[dict[str, Any]]:
    with tarfile.open(_PACKED) as packed:
        lines = packed.extractfile("cases.jsonl")
        assert lines is not None
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    return _read_cases()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inputs, unpacked."""
    found = tmp_path_factory.mktemp("fluxion")
    with tarfile.open(_PACKED) as packed:
        packed.extractall(found, filter="data")
    return found


def replay(case: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run a case. Returns what differs: nothing, ``file``, ``told`` or both."""
    out = folder / f"{case['id']}.out"
    arguments = [str(out) if one == "OUT" else one for one in case["args"]]
    capsys.readouterr()
    main(arguments, standard_input=case["commands"])
    told = _LISTED.findall(capsys.readouterr().out)
    written = out.read_text(encoding="utf-8") if out.exists() else ""
    differs = ["file"] if written != case["expected"] else []
    return differs + (["told"] if told != case["told"] else [])


@pytest.mark.parametrize("group", range(_GROUPS))
def test_the_answer_is_fluxions(
    group: int,
    cases: list[dict[str, Any]],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A case agrees, or is an exception with a reason and does not agree."""
    monkeypatch.chdir(folder)
    wrong = {}
    for case in cases[group::_GROUPS]:
        differs = replay(case, folder, capsys)
        if differs and case["id"] not in EXCEPTIONS:
            wrong[case["id"]] = differs
        elif not differs and case["id"] in EXCEPTIONS:
            wrong[case["id"]] = ["agrees now: take it out of exceptions.json"]
    assert not wrong


def test_every_exception_is_a_case_and_has_a_reason(cases: list[dict[str, Any]]) -> None:
    names = {case["id"] for case in cases}
    assert len(names) == len(cases) == 458
    assert EXCEPTIONS.keys() <= names
    assert {reason for found in EXCEPTIONS.values() for reason in found} == REASONS.keys()


def test_the_page_says_how_many_agree(cases: list[dict[str, Any]]) -> None:
    """docs/developer/matcher.md has the number, and each reason with its number of cases."""
    page = _MATCHER_PAGE.read_text(encoding="utf-8")
    assert f"{len(cases) - len(EXCEPTIONS)} of {len(cases)} cases" in page
    for name, words in REASONS.items():
        count = sum(name in found for found in EXCEPTIONS.values())
        assert f"| `{name}` | {count} | {words} |" in page

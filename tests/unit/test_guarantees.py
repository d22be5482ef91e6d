"""Each sentence of the pages that state guarantees names the tests that show it.

``tests/guarantees/PAGE.yaml`` has the sentences of one page in their order. If a sentence of the
page changes, its tests must be checked, so its entry must change too.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
LISTS = sorted((ROOT / "tests" / "guarantees").glob("*.yaml"))
NO_PROMISES = {"definition", "instruction", "limitation", "measurement", "pointer", "reason"}
"""Kinds of sentences that promise nothing: what a word means, what to do, what is not protected,
what was measured once, where to read more, and why."""


def statements(page: str) -> list[str]:
    """The sentences of a page, and the rows of its tables. Code and headings are left out."""
    text = re.sub(r"(?s)(`{3,}).*?\1|<!--.*?-->", "\n\n", page)
    text = re.sub(r"(?m)^(?:#.*|    .*|\s*\|[-| :]+\|)$", "\n\n", text)
    found: list[str] = []
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.) )", text):
        words = " ".join(block.split())
        if words.startswith("|"):
            found.append(words.strip("| "))
        else:
            words = re.sub(r"^(?:[-*]|\d+\.) ", "", words)
            found += re.split(r"(?<=[.!?])\s+(?=[A-Z`*\[]|fluxqueue )", words)
    headers = {row.strip("| ") for row in re.findall(r"(?m)^(\|.*)\n\|[-| :]+\|$", page)}
    return [one for one in found if len(one.split()) >= 2 and one not in headers]


@cache
def functions_in(file: str) -> set[str]:
    """The names of the functions in a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions)}


@pytest.mark.parametrize("list_of_page", LISTS, ids=lambda file: file.stem)
def test_each_sentence_has_its_tests(list_of_page: Path) -> None:
    page = ROOT / "docs" / "admin" / f"{list_of_page.stem}.md"
    listed: list[dict[str, Any]] = yaml.safe_load(list_of_page.read_text(encoding="utf-8"))
    said = [one["says"] for one in listed]
    present = statements(page.read_text(encoding="utf-8"))
    assert [one for one in present if one not in said] == [], "sentences without an entry"
    assert [one for one in said if one not in present] == [], "entries without a sentence"
    for one in listed:
        assert bool(one.get("tests")) != ("promises" in one), one
        if "promises" in one:
            # ``promises: none, instruction``: the kind says why there is nothing to show.
            assert one["promises"].removeprefix("none, ") in NO_PROMISES, one
        for test in one.get("tests", ()):
            file, _, name = test.partition("::")
            assert name in functions_in(file), test


def test_the_pages_of_guarantees_have_a_list() -> None:
    assert {file.stem for file in LISTS} == {"policies", "queues", "security"}

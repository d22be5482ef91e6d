"""Every regular expression of the tree costs time in proportion to the text, whatever the text.

No checker on PyPI finds the patterns below in ``BAD``: the two that read Python's dialect call
most of them safe. So each pattern is attacked with texts from its own parse tree
(``tests.support.regex_attacks``), and the processor time of twice the text is compared with once.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import resource
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import regex_attacks

ROOT = Path(__file__).parents[2]
PACKAGES = (
    ("fluxqueue", ROOT),
    ("fluxqueue_webhook", ROOT / "webhook"),
    ("fluxion", ROOT / "fluxion/src"),
    ("fluxqueue_devtools", ROOT / "devtools/src"),
    ("localcluster", ROOT / "localcluster/src"),
)
CPU_S = 240
"""Processor time for all patterns. One with exponential cost needs more, and is named."""
METHODS = frozenset({"fullmatch", "match", "search", "findall", "finditer", "sub", "split"})
_AS = {"findall": "finditer", "split": "finditer"}
EXEMPT = {
    "localcluster.types.cel.times._PIECE": "only text that the whole pattern accepts is cut so",
    "localcluster.types.field_texts": "reads the package's own source",
}
"""Patterns that no text of a user reaches, and why."""
MADE = {
    "fluxqueue/errors.py": "an escaped value of at most SHOWN_MAX characters",
    "localcluster/src/localcluster/types/cel/texts.py": "the tests' own expressions",
}
"""Modules that make patterns at run time, and of what."""
BAD = (
    r"(?:now)?\s*\+\s*((?:[0-9]{1,9}[dhms]?)+)",
    r"(a|a)+b",
    r"(\w+\s?)*:",
    r"(?:x+x+)+y",
    r"\d+[a-z]*\d*[a-z]*\d+$",
)


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node


def _is_re(call: ast.Call) -> bool:
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "re"
        and function.attr in METHODS | {"compile"}
    )


def _methods(tree: ast.AST, name: str) -> list[str]:
    """How a module uses a pattern of its own. A match of the whole where another module does."""
    found = {
        call.func.attr
        for call in _calls(tree)
        if isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == name
    } & METHODS
    return sorted(_AS.get(one, one) for one in found or {"fullmatch"})


def _patterns() -> Iterator[dict[str, Any]]:
    for package, base in PACKAGES:
        for path in sorted((base / package).rglob("*.py")):
            tree = ast.parse(path.read_text())
            named = ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")
            used = [call for call in _calls(tree) if _is_re(call)]
            if not used or named.endswith("__main__"):
                continue
            module = importlib.import_module(named)
            for name, value in vars(module).items():
                if isinstance(value, re.Pattern):
                    yield _asked(value, f"{named}.{name}", _methods(tree, name))
            yield from _inline(used, named)
    for at, pattern in _of_documents():
        yield _asked(re.compile(pattern), at, ["search"])


def _inline(used: Iterable[ast.Call], named: str) -> Iterator[dict[str, Any]]:
    for call in used:
        assert isinstance(call.func, ast.Attribute)
        first = call.args[0]
        if call.func.attr != "compile" and isinstance(first, ast.Constant):
            method = _AS.get(call.func.attr, call.func.attr)
            yield _asked(re.compile(first.value), f"{named}:{call.lineno}", [method])


def _of_documents() -> Iterator[tuple[str, str]]:
    """Patterns of the definitions and of the chart's values."""
    files = [*(ROOT / "chart/crds").glob("*.yaml"), ROOT / "chart/values.schema.json"]
    for path in files:
        for document in yaml.safe_load_all(path.read_text()):
            for pattern in _under(document):
                yield path.name, pattern


def _under(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("pattern"), str):
            yield value["pattern"]
        for one in value.values():
            yield from _under(one)
    elif isinstance(value, list):
        for one in value:
            yield from _under(one)


def _asked(pattern: re.Pattern[Any], at: str, methods: list[str]) -> dict[str, Any]:
    text, is_bytes = pattern.pattern, isinstance(pattern.pattern, bytes)
    shown = text.decode("latin-1") if isinstance(text, bytes) else text
    flags = pattern.flags & ~re.UNICODE
    return {"pattern": shown, "flags": flags, "is_bytes": is_bytes, "methods": methods, "at": at}


def _slow(asked: Iterable[dict[str, Any]], cpu_s: int = CPU_S) -> list[str]:
    """Name what is slow. A pattern on which the process dies is slow as well."""
    text = "".join(f"{json.dumps(one)}\n" for one in asked)
    done = subprocess.run(
        [sys.executable, "-P", regex_attacks.__file__],
        input=text,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s)),
        check=False,
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    found = [f"{one['at']}: {one['slow']} by {one['attack']}" for one in said if "slow" in one]
    if not said or "done" not in said[-1]:
        found.append(f"{said[-1] if said else ''} did not come back: {done.stderr[-500:]}")
    return found


@pytest.mark.long("a checker of regular expressions over the whole tree")
def test_no_pattern_of_the_tree_is_slower_than_linear() -> None:
    """Module constants, patterns in calls, and those of the chart's definitions and schema."""
    known = {
        one["pattern"] + str(one["methods"]): one
        for one in _patterns()
        if not one["at"].startswith(tuple(EXEMPT))
    }
    assert len(known) > 60
    assert _slow(known.values()) == []


@pytest.mark.parametrize("pattern", BAD)
def test_a_slow_pattern_is_found(pattern: str) -> None:
    """The check can fail: each of these has stood in a real program."""
    assert _slow([_asked(re.compile(pattern), "here", ["fullmatch"])], 60)


def test_no_pattern_is_made_from_what_is_not_known_here() -> None:
    """A pattern in a call is a constant, so that the test above sees it."""
    made = {
        str(path.relative_to(ROOT))
        for package, base in PACKAGES
        for path in sorted((base / package).rglob("*.py"))
        for call in _calls(ast.parse(path.read_text()))
        if _is_re(call) and not isinstance(call.args[0], ast.Constant)
        if isinstance(call.func, ast.Attribute) and call.func.attr != "compile"
    }
    assert made - MADE.keys() == set()

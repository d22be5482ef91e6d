"""Rules of CRDs, against what a real API server said of them (``conformance/expressions.json``)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from localcluster.kinds.crd_rules import MISSING, compile_findings, variables_of
from localcluster.kinds.crd_schema import StructuralSchema
from localcluster.types.cel import CelSyntaxError

RECORDED = json.loads(
    (Path(__file__).parents[2] / "conformance" / "expressions.json").read_text(encoding="utf-8")
)
COMPILED, HELD = RECORDED["compiled"], RECORDED["held"]

LEFT_OUT = re.compile(
    r"\b(?:(?:lists|sets|strings|optional|format|ip|math|base64|cel)\.\w+|find(?:All)?|charAt"
    r"|(?:lastI|i)ndexOf|(?:lower|upper)Ascii|replace|split|substring|trim|format|join|isSorted|min"
    r"|max|sum|sort|sortBy|distinct|reverse|slice|flatten|first|last|transform(?:List|Map)|existsOne"
    r"|opt(?:Flat)?Map|(?:is)?(?:IP|CIDR|URL|Semver)|ip|cidr|url|semver|sub|add|isInteger"
    r"|as(?:Integer|ApproximateFloat)|get[A-Z]\w+)\(|\b(?:all|exists)\(\w+, \w+, "
)
"""Functions of the libraries that are not served. Each is refused by its name."""
_UNSIGNED = "unsigned numbers are refused by name"
_MESSAGES = "messages are refused by name"
_WORDING = "one syntax error is told, in other words; recorded is all that the parser tried"
DIFFERENT = {
    "'a' + string(self.n)": "what an expression may cost is not estimated",
    "uint(self.n) == 1u": _UNSIGNED,
    "1u == 1u": _UNSIGNED,
    "1 == 1u": _UNSIGNED,
    "Thing{a: 1} == 1": _MESSAGES,
    "self{a: 1} == 1": _MESSAGES,
    **dict.fromkeys(
        (
            *("self.n >> 1", "self.n = 1", "'abc", "\"\\q\" == 'q'", "self.n == 1; self.n == 2"),
            *("self.n == 1 && \\n  self.x", "self.s == 'a''b'", "self.n. == 1", "(self.n == 1"),
            *("[self.n == 1", "self.n == 1)", "'too' + 'bad"),
        ),
        _WORDING,
    ),
}
"""Rules of which something else is said here, and why."""


def _name(case: dict[str, Any]) -> str:
    return str(case.get("messageExpression") or case["rule"])


@pytest.mark.parametrize("case", COMPILED["rules"], ids=_name)
def test_it_compiles_as_recorded(case: dict[str, Any]) -> None:
    """Types are checked against the schema, and findings read as the real server's."""
    is_root = case.get("at") == "root"
    spec = COMPILED["schema"]
    schema = {"type": "object", "properties": {"spec": spec}} if is_root else spec
    found = compile_findings(case, variables_of(schema, case, is_root=is_root))
    if LEFT_OUT.search(_name(case)):
        assert any("undeclared reference" in text for _, text in found), found
        return
    says = [text for _, text in found] == case["findings"]
    assert says is (_name(case) not in DIFFERENT), found


@pytest.mark.parametrize("case", HELD["rules"], ids=_name)
def test_it_holds_as_recorded(case: dict[str, Any]) -> None:
    """Of one object with values of all types. Errors of evaluation read as the real server's."""
    spec = {"type": "object", "properties": HELD["schema"]}
    rules = {"x-kubernetes-validations": [{"rule": case["rule"]}]}
    if LEFT_OUT.search(case["rule"]):
        with pytest.raises(CelSyntaxError, match="undeclared reference"):
            StructuralSchema(spec | rules)
        return
    schema = StructuralSchema(spec | rules)
    found = [error.message() for error in schema.validate(HELD["spec"], MISSING, "", ({}, {}))]
    assert (found == case["findings"]) is (_name(case) not in DIFFERENT), found


def test_what_differs_was_recorded() -> None:
    """No difference is named of a rule that was not recorded."""
    assert set(DIFFERENT) <= {_name(case) for case in COMPILED["rules"] + HELD["rules"]}

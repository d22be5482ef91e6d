"""Rules of CRDs, against what a real API server said of them (``conformance/expressions.json``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from localcluster.kinds.crd_rules import MISSING, compile_findings, variables_of
from localcluster.kinds.crd_schema import StructuralSchema

RECORDED = json.loads(
    (Path(__file__).parents[2] / "conformance" / "expressions.json").read_text(encoding="utf-8")
)
COMPILED, HELD = RECORDED["compiled"], RECORDED["held"]

_COSTS = "what an expression may cost is not estimated"
_UNSIGNED = "unsigned numbers are refused by name"
_MESSAGES = "messages are refused by name"
_WORDING = "one syntax error is told, in other words; recorded is all that the parser tried"
_LATE = "a pattern or format that cannot be read is found when it is evaluated"
DIFFERENT = {
    "format.dns1123Label().validate(self.s).hasValue()": _COSTS,
    "!format.dns1123Label().validate(self.s).hasValue()": _COSTS,
    "self.l[?0].optMap(x, x + 'a').orValue('') == 'a'": _COSTS,
    "'a' + string(self.n)": _COSTS,
    "uint(self.n) == 1u": _UNSIGNED,
    "1u == 1u": _UNSIGNED,
    "1 == 1u": _UNSIGNED,
    "Thing{a: 1} == 1": _MESSAGES,
    "self{a: 1} == 1": _MESSAGES,
    "isSemver(self.s)": "semver is refused by name",
    "semver('1.0.0').major() == 1": "semver is refused by name",
    "quantity('1').sub(quantity('2')).sign() == -1": "sign is known nowhere here",
    "self.s.find('[') == 'a'": _LATE,
    "self.s.findAll('[').size() == 1": _LATE,
    "'%d'.format(['a']) == ''": _LATE,
    "'%q'.format(['a']) == ''": _LATE,
    "'%e'.format([1.5]) == '1.500000\\u202f×\\u202f10⁰⁰'": "%e is refused when it is evaluated",
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
    says = [text for _, text in found] == case["findings"]
    assert says is (_name(case) not in DIFFERENT), found


@pytest.mark.parametrize("case", HELD["rules"], ids=_name)
def test_it_holds_as_recorded(case: dict[str, Any]) -> None:
    """Of one object with values of all types; errors of evaluation read as the real server's."""
    spec = {"type": "object", "properties": HELD["schema"]}
    schema = StructuralSchema(spec | {"x-kubernetes-validations": [{"rule": case["rule"]}]})
    found = [error.message() for error in schema.validate(HELD["spec"], MISSING, "", ({}, {}))]
    assert (found == case["findings"]) is (_name(case) not in DIFFERENT), found


def test_what_differs_was_recorded() -> None:
    """No difference is named of a rule that nobody asked about."""
    assert set(DIFFERENT) <= {_name(case) for case in COMPILED["rules"] + HELD["rules"]}

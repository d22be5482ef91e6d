"""Compares what was recorded with what was answered, after normalisation.

Recorded values hold tokens (``<uid-1>``, ``<rv-3>``, ``<time>`` ...).  A numbered token is bound to
the first value it meets and must be that value from then on.  Used by ``runner`` only.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

_SHAPES = {
    "uid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "rv": r"\d+",
    "gen": r"[a-z0-9]{5}",
    "name": r"[a-z0-9-]+",
    "event": r"[0-9a-z.]+",
    "hash": r"[A-Za-z0-9]+",
    "vol": r"[a-z0-9]{5}",
    "continue": r"[A-Za-z0-9_=-]+",
    "token": r"[A-Za-z0-9_.=-]+",
    "time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
    "microtime": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z",
    "port": r"\d+",
    "ca-bundle": r"[A-Za-z0-9+/=]+",
    "certificate": r"(?s:.*)",
    "commit": r".*",
    "number": r"\d+",
}
TOKEN = re.compile(r"<(" + "|".join(_SHAPES) + r")(?:-(\d+))?>")
_CELL_AGE = re.compile(r"^\d+[smhdy](\d+[smhdy])?$")
_PLACEHOLDERS = frozenset({"...", "accepted", "a stream of watch events"})
_MISSING = object()
_RECORDED_HOST = "default-scheduler-vm"
_CONTENT = frozenset({"spec", "status", "data", "involvedObject", "value", "rules", "apiVersion"})
_IGNORED = frozenset({"managedFields", "description", "deployment.kubernetes.io/revision"})
"""Shown by ``apply-*`` only. Not served, and how many revisions a controller at work has seen."""
_POD_EVENT = re.compile(r"^(Created|Deleted) pod: ")
_RANDOM_NAME = re.compile(r"<(?:gen|name|event|hash)-\d+>")

# Texts that print an object in the server's internal Go form. README "Surprises" 6 says to compare
# what is before and after it.
_INTERNAL = (
    (re.compile(r"(Invalid value: )\{.*\}(: field is immutable)", re.DOTALL), r"\1{}\2"),
    (re.compile(r"(previously negative\)).*", re.DOTALL), r"\1"),
    (re.compile(r'(patch: Invalid value: )".*\}"(: )', re.DOTALL), r"\1{}\2"),
    (re.compile(r'^(Invalid value: )"\{.*\}"(: )', re.DOTALL), r"\1{}\2"),
    (re.compile(r"(Invalid value: )\{[^}]*\}(: only additions to spec\.nodeSelector)"), r"\1{}\2"),
    (re.compile(r"2006-01-02T15:04:05(\.000000)?Z07:00"), "<time>07:00"),
    (re.compile(r"(Invalid value: )null(: only additions to spec\.nodeSelector)"), r"\1{}\2"),
)


def _plain_text(text: str) -> str:
    for pattern, replacement in _INTERNAL:
        text = pattern.sub(replacement, text)
    return text


_TRIES = 2000
"""Pairs of items that are tried at most."""


@dataclass
class Bindings:
    """What the numbered tokens of one scenario stand for."""

    values: dict[str, str] = field(default_factory=dict)

    def fill(self, value: Any, extra: dict[str, str]) -> Any:
        """Put values in the place of tokens (for requests). Unknown ones stay."""
        if isinstance(value, str):
            return TOKEN.sub(lambda m: self._value_of(m, extra), value)
        if isinstance(value, dict):
            return {self.fill(k, extra): self.fill(v, extra) for k, v in value.items()}
        if isinstance(value, list):
            return [self.fill(item, extra) for item in value]
        return value

    def _value_of(self, match: re.Match[str], extra: dict[str, str]) -> str:
        return self.values.get(match[0], extra.get(match[1], match[0]))

    def bind_text(self, recorded: str, actual: str) -> bool:
        """Whether ``actual`` is ``recorded`` with values for the tokens. Binds new ones."""
        if recorded == _RECORDED_HOST:
            return actual.startswith("default-scheduler-")
        if recorded == "kube-controller-manager":
            return actual in (recorded, "localcluster")
        if "<" not in recorded:
            return recorded == actual
        if recorded == actual:
            return True
        pattern, names = self._pattern(recorded)
        match = re.fullmatch(pattern, actual, re.DOTALL)
        if match is None:
            return False
        for index, name in enumerate(names):
            self.values.setdefault(name, match[f"t{index}"])
        return True

    def _pattern(self, recorded: str) -> tuple[str, list[str]]:
        pattern, position, names = "", 0, list[str]()
        for match in TOKEN.finditer(recorded):
            pattern += re.escape(recorded[position : match.start()])
            position = match.end()
            token, shape = match[0], _SHAPES[match[1]]
            if token in self.values:
                pattern += re.escape(self.values[token])
            elif match[2] is None:
                pattern += f"(?:{shape})"
            elif token in names:
                pattern += f"(?P=t{names.index(token)})"
            else:
                pattern += f"(?P<t{len(names)}>{shape})"
                names.append(token)
        return pattern + re.escape(recorded[position:]), names


@dataclass
class Comparison:
    """Collects differences of one pair of values. ``loose`` ignores keys left out on record."""

    bindings: Bindings
    differences: list[str] = field(default_factory=list)
    is_table: bool = False

    def compare(self, recorded: Any, actual: Any, path: str, *, loose: bool = False) -> None:
        """Note every difference below ``path``."""
        if isinstance(recorded, str) and recorded in _PLACEHOLDERS:
            return
        if isinstance(recorded, dict) and isinstance(actual, dict):
            self._compare_objects(recorded, actual, path, loose)
        elif isinstance(recorded, list) and isinstance(actual, list):
            self._compare_lists(recorded, actual, path, loose)
        elif isinstance(recorded, str) and isinstance(actual, dict):
            name = (actual.get("metadata") or {}).get("name", "")
            if not self.bindings.bind_text(recorded, name):
                self.note(path, recorded, actual)
        elif isinstance(recorded, str) and isinstance(actual, str):
            if not self.bindings.bind_text(_plain_text(recorded), _plain_text(actual)):
                self.note(path, recorded, actual)
        elif recorded != actual or isinstance(recorded, bool) is not isinstance(actual, bool):
            self.note(path, recorded, actual)

    def note(self, path: str, recorded: Any, actual: Any) -> None:
        """One difference, shortened for reading."""
        self.differences.append(f"{path}: recorded {_short(recorded)}, got {_short(actual)}")

    def _compare_objects(self, recorded: Any, actual: Any, path: str, loose: bool) -> None:
        if "has_gates_key" in recorded:
            gates = (actual.get("spec") or actual).get("schedulingGates")
            if bool(gates) is not recorded["has_gates_key"]:
                self.note(f"{path}.schedulingGates", recorded["has_gates_key"], gates)
            recorded = {k: v for k, v in recorded.items() if k != "has_gates_key"}
        if ".items[" in path and not _CONTENT & set(recorded):
            loose = True
        if "metadata" in actual and "metadata" not in recorded and loose:
            actual = {key: _short_value(actual, key) for key in recorded}
            actual = {key: value for key, value in actual.items() if value is not _MISSING}
        if "causes" in recorded and "causes" in actual:
            self._compare_causes(recorded, actual, path)
            recorded = {k: v for k, v in recorded.items() if k != "causes"}
            actual = {k: v for k, v in actual.items() if k != "causes"}
        for key, value in recorded.items():
            if key == "deployment.kubernetes.io/revision":
                continue
            if key == "annotations" and value is None and set(actual.get(key) or ()) <= _IGNORED:
                continue
            found = actual.get(key, _MISSING)
            if found is _MISSING and loose and "metadata" in actual:
                found = _short_value(actual, key)
            if found is _MISSING:
                if not (loose and (value is None or key in ("created", "number", "keys"))):
                    self.note(f"{path}.{key}", value, "nothing")
            elif key == "resourceVersion" and self._is_later(value, found, path):
                continue
            elif key == "cells" and isinstance(value, list):
                self._compare_cells(value, found, f"{path}.{key}")
            elif key == "message" and isinstance(value, str) and isinstance(found, str):
                self._compare_message(value, found, f"{path}.{key}")
            elif key != "description":
                self.compare(value, found, f"{path}.{key}", loose=loose)
        if not loose:
            for key in actual:
                if key == "object" and "cells" in recorded:
                    continue  # given for the first row only
                if key not in recorded and key not in _IGNORED:
                    self.note(f"{path}.{key}", "nothing", actual[key])

    def _is_later(self, recorded: Any, actual: Any, path: str) -> bool:
        """The version of a Table moves with every write of the cluster: it may only rise."""
        bound = self.bindings.values.get(str(recorded), "")
        is_of_table = self.is_table and path == "body.metadata"
        return is_of_table and bound.isdigit() and int(actual or 0) >= int(bound)

    def _compare_lists(
        self, recorded: list[Any], actual: list[Any], path: str, loose: bool
    ) -> None:
        if len(recorded) != len(actual):
            self.note(f"{path} (length {len(recorded)} and {len(actual)})", recorded, actual)
            return
        if path.endswith(".items") and any(_RANDOM_NAME.search(_item_name(i)) for i in recorded):
            self._compare_unordered(recorded, list(actual), path, loose)
            return
        for index, (left, right) in enumerate(zip(recorded, actual, strict=True)):
            self.compare(left, right, f"{path}[{index}]", loose=loose)

    def _compare_unordered(
        self, recorded: list[Any], actual: list[Any], path: str, loose: bool
    ) -> None:
        """Lists are sorted by names, so random names shuffle them: pair what fits, else what fits
        best.
        """
        if fitting := self._pair(recorded, actual, path, loose, [_TRIES]):
            self.bindings.values.update(fitting)
            return
        for index, left in enumerate(recorded):
            best: tuple[int, int] | None = None
            for position, right in enumerate(actual):
                trial = self._try(left, right, path, loose, self.bindings.values)
                if best is None or len(trial.differences) < best[0]:
                    best = (len(trial.differences), position)
            assert best is not None
            self.compare(left, actual.pop(best[1]), f"{path}[{index}]", loose=loose)

    def _pair(
        self,
        recorded: list[Any],
        actual: list[Any],
        path: str,
        loose: bool,
        tries: list[int],
        values: dict[str, str] | None = None,
    ) -> dict[str, str] | None:
        """What tokens stand for where all of a list fits. Of equal items one may stand for a token
        that another, further on, must have: then the next is tried, for so many ``tries``.
        """
        values = self.bindings.values if values is None else values
        if not recorded:
            return values
        for position, right in enumerate(actual):
            tries[0] -= 1
            if tries[0] < 0:
                return None
            trial = self._try(recorded[0], right, path, loose, values)
            if trial.differences:
                continue
            others = actual[:position] + actual[position + 1 :]
            found = self._pair(recorded[1:], others, path, loose, tries, trial.bindings.values)
            if found is not None:
                return found
        return None

    @staticmethod
    def _try(left: Any, right: Any, path: str, loose: bool, values: dict[str, str]) -> Comparison:
        trial = Comparison(Bindings(dict(values)))
        trial.compare(left, right, path, loose=loose)
        return trial

    def _compare_causes(self, recorded: Any, actual: Any, path: str) -> None:
        """The server walks Go maps here, so the order of causes is not fixed."""
        left = sorted(recorded["causes"], key=_cause_key)
        right = sorted(actual["causes"], key=_cause_key)
        self.compare(left, right, f"{path}.causes")

    def _compare_cells(self, recorded: list[Any], actual: list[Any], path: str) -> None:
        """Cells of a Table. Ages only need to be ages."""
        if len(recorded) != len(actual):
            self.note(path, recorded, actual)
            return
        for index, (left, right) in enumerate(zip(recorded, actual, strict=True)):
            both = isinstance(left, str) and isinstance(right, str)
            if both and _CELL_AGE.match(left) and _CELL_AGE.match(right):
                continue
            self.compare(left, right, f"{path}[{index}]")

    def _compare_message(self, recorded: str, actual: str, path: str) -> None:
        left, right = _plain_text(recorded), _plain_text(actual)
        if self.bindings.bind_text(left, right):
            return
        if _POD_EVENT.match(left) and Bindings().bind_text(left, right):
            return  # which of several equal pods an event is about is not fixed
        filled = self.bindings.fill(left, {})
        if sorted(re.split(r"[\[\],]\s*", filled)) == sorted(re.split(r"[\[\],]\s*", right)):
            return
        self.note(path, recorded, actual)


def _item_name(item: Any) -> str:
    if isinstance(item, str):
        return item
    return str((item.get("metadata") or {}).get("name", item.get("name", "")))


def _short_value(obj: Any, key: str) -> Any:
    """A value that the recording gives in short: ``name`` for ``metadata.name`` and so on."""
    if key in obj:
        return obj[key]
    if key == "ready":
        statuses = (obj.get("status") or {}).get("containerStatuses") or ()
        return bool(statuses) and all(status.get("ready") for status in statuses)
    for part in ("metadata", "status", "spec", "data"):
        if key in (obj.get(part) or {}):
            return obj[part][key]
    return _MISSING


def _cause_key(cause: Any) -> tuple[str, str]:
    return str(cause.get("field", "")), TOKEN.sub("", str(cause.get("message", "")))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 400 else f"{text[:200]} ... {text[-190:]}"


def is_reduced(body: Any) -> bool:
    """Whether keys of a recorded body may have been left out."""
    if not isinstance(body, dict):
        return False
    if body.get("kind") == "Status":
        return False
    if str(body.get("kind", "")).endswith("List") and "items" not in body:
        return True
    return not ("apiVersion" in body and "kind" in body and ("metadata" in body))

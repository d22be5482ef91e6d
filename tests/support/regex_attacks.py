"""Attacks on a regular expression, made from its own parse tree, and their cost as text grows.

Run as a program by ``tests/unit/test_patterns.py``, one process for all patterns: it reads JSON
lines ``{"pattern", "flags", "is_bytes", "methods"}`` and writes one JSON line for each pattern that
is slower than linear. The process that starts it bounds its processor time, since a pattern with
exponential cost does not come back.
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
from collections.abc import Iterator
from re import _constants as constants
from re import _parser as parser
from typing import Any

LENGTHS = (12, 16, 20, 24, 28, 64, 512, 4096, 16384)
LEAST_S = 0.003
"""A shorter time is noise."""
PER_CHARACTER_S = 1e-6
GROWTH = 2.8
"""Time for twice the text, of once: 2 is linear, 4 is quadratic."""


def sample(tree: Any, chance: random.Random, groups: dict[int, str]) -> str:
    """Return a text that the tree accepts, or nearly: lookarounds are left out."""
    return "".join(_node(op, value, chance, groups) for op, value in tree)


def _node(op: Any, value: Any, chance: random.Random, groups: dict[int, str]) -> str:
    if op is constants.LITERAL:
        return chr(value)
    if op is constants.NOT_LITERAL:
        return "a" if value != ord("a") else "b"
    if op is constants.ANY:
        return chance.choice("a0 ")
    if op is constants.IN:
        return chance.choice(_members(value))
    if op in (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT):
        low, high, body = value
        count = chance.randint(low, min(int(high), low + 2))
        return "".join(sample(body, chance, groups) for _ in range(count))
    if op is constants.SUBPATTERN:
        groups[value[0] or 0] = found = sample(value[-1], chance, groups)
        return found
    if op is constants.ATOMIC_GROUP:
        return sample(value, chance, groups)
    if op is constants.BRANCH:
        return sample(chance.choice(value[1]), chance, groups)
    if op is constants.GROUPREF:
        return groups.get(value, "")
    return ""


_CATEGORIES = {
    constants.CATEGORY_DIGIT: "05",
    constants.CATEGORY_NOT_DIGIT: "a ",
    constants.CATEGORY_SPACE: " \t",
    constants.CATEGORY_NOT_SPACE: "a0",
    constants.CATEGORY_WORD: "aA0_",
    constants.CATEGORY_NOT_WORD: " -",
}


def _members(items: Any) -> str:
    """Characters of a class, a few of each range."""
    found, is_negated = "", False
    for op, value in items:
        if op is constants.NEGATE:
            is_negated = True
        elif op is constants.LITERAL:
            found += chr(value)
        elif op is constants.RANGE:
            found += chr(value[0]) + chr(value[1])
        elif op is constants.CATEGORY:
            found += _CATEGORIES[value]
    if is_negated:
        found = "".join(one for one in 'a0 -A\t\\"' if one not in found) or "~"
    return found


def _repeats(tree: Any) -> Iterator[Any]:
    """Bodies of all repetitions that may be long."""
    for op, value in tree:
        if op in (constants.MAX_REPEAT, constants.MIN_REPEAT):
            if int(value[1]) > 8:
                yield value[2]
            yield from _repeats(value[2])
        elif op is constants.SUBPATTERN:
            yield from _repeats(value[-1])
        elif op is constants.BRANCH:
            for one in value[1]:
                yield from _repeats(one)
        elif op in (constants.ASSERT, constants.ASSERT_NOT):
            yield from _repeats(value[1])


def attacks(pattern: str | bytes, flags: int) -> list[tuple[str, str, str]]:
    """Return what may be slow: a beginning, what is repeated, an end that does not fit."""
    chance = random.Random(7)  # the same attacks in each run
    text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
    tree = parser.parse(text, flags & ~re.UNICODE)
    wholes = {sample(tree, chance, {}) for _ in range(12)}
    beginnings = {"", *(one[: len(one) // 2] for one in wholes), *(one[:1] for one in wholes)}
    pumps = {one for one in wholes if one}
    for body in _repeats(tree):
        pumps |= {sample(body, chance, {}) for _ in range(6)}
    pumps |= {one[0] for one in pumps if one} | {" ", "a", "0"}
    found = [
        (start, pump, end)
        for pump in sorted(pumps - {""})
        for start in sorted(beginnings)
        for end in ("\x00", "!", "")
    ]
    chance.shuffle(found)
    return found[:240]


def cost_s(compiled: re.Pattern[Any], method: str, text: str, is_bytes: bool) -> float:
    """Processor time of one call (seconds), the least of three where it is short."""
    subject: Any = text.encode("latin-1", "replace") if is_bytes else text
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        if method == "sub":
            compiled.sub(subject[:0], subject)
        elif method == "finditer":
            for _ in compiled.finditer(subject):
                pass
        else:
            getattr(compiled, method)(subject)
        best = min(best, time.process_time() - began)
        if best < LEAST_S:
            break
    return best


def find_slow(pattern: str | bytes, flags: int, methods: list[str]) -> dict[str, Any] | None:
    """Return the first attack that costs more than in proportion to its length, or None."""
    compiled = re.compile(pattern, flags & ~re.UNICODE)
    is_bytes = isinstance(pattern, bytes)
    for method in methods:
        for start, pump, end in attacks(pattern, flags):
            for length in LENGTHS:
                text = start + pump * (length // len(pump) + 1) + end
                took_s = cost_s(compiled, method, text, is_bytes)
                if took_s < max(LEAST_S, length * PER_CHARACTER_S):
                    continue
                half = start + pump * (length // len(pump) // 2 + 1) + end
                if took_s > GROWTH * cost_s(compiled, method, half, is_bytes):
                    return {"method": method, "attack": [start, pump, end], "length": length}
                break
    return None


def main() -> None:
    """Judge each pattern of the standard input."""
    for line in sys.stdin:
        asked = json.loads(line)
        raw: Any = asked["pattern"]
        print(json.dumps({"begins": raw, "at": asked["at"]}), flush=True)
        pattern = raw.encode("latin-1") if asked["is_bytes"] else raw
        slow = find_slow(pattern, asked["flags"], asked["methods"])
        if slow is not None:
            print(json.dumps({"slow": raw, "at": asked["at"], **slow}), flush=True)
    print(json.dumps({"done": True}), flush=True)


if __name__ == "__main__":
    main()

"""Each named statement is valid on the real schema, is used, and has the columns of its row."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.dialects import postgresql

from fluxqueue.db.engine import SEARCH_PATH
from fluxqueue.db.queries import Q, read_statements
from fluxqueue.db.reader import columns

ROOT = Path(__file__).resolve().parents[3]
MODULES = sorted((ROOT / "fluxqueue").rglob("*.py"))
NUMBERED = postgresql.dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
STATEMENTS: dict[str, str] = dict(vars(Q))


def numbered(name: str) -> str:
    """The statement with the parameters of the server, $1 and so on."""
    words = STATEMENTS[name]
    own = sorted(set(re.findall(r"%\((\w+)\)s", words)))
    for number, one in enumerate(own, 1):
        words = words.replace(f"%({one})s", f"${number}")
    return words if own else str(text(words).compile(dialect=NUMBERED))


def uses() -> Iterator[tuple[str, str]]:
    """Each name of a statement in the product, and the module that has it."""
    for file in MODULES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Q":
                yield node.attr, str(file.relative_to(ROOT))


def fetches() -> Iterator[tuple[str, Any]]:
    """Each statement that is fetched by its name, and the class of its rows."""
    for file in MODULES:
        source = file.read_text(encoding="utf-8")
        if "Q." not in source:
            continue
        module = importlib.import_module(str(file.relative_to(ROOT))[:-3].replace("/", "."))
        for node in ast.walk(ast.parse(source)):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func).endswith((".fetch", ".fetch_one"))
                and len(node.args) > 1
                and isinstance(node.args[0], ast.Attribute)
                and ast.unparse(node.args[0].value) == "Q"
            ):
                row = eval(ast.unparse(node.args[1]), vars(module))
                yield node.args[0].attr, row


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as one:
        one.execute(f"SET search_path = {SEARCH_PATH}".encode())
        yield one


def columns_of(connection: psycopg.Connection[Any], name: str) -> list[str]:
    """Have the server prepare a statement and say its columns."""
    server = connection.pgconn
    server.prepare(b"", numbered(name).encode())
    found = server.describe_prepared(b"")
    return [(found.fname(number) or b"").decode() for number in range(found.nfields)]


def test_the_server_knows_all_that_they_name(connection: psycopg.Connection[Any]) -> None:
    faults = {}
    for name in STATEMENTS:
        result = connection.pgconn.prepare(b"", numbered(name).encode())
        if result.error_message:
            faults[name] = result.error_message.decode()
    assert faults == {}


def fields_of(row: Any) -> tuple[list[str], int] | None:
    """The fields of a class of rows, and how many must be there. None for a single column."""
    if dataclasses.is_dataclass(row):
        fields = dataclasses.fields(row)
        missing = (dataclasses.MISSING, dataclasses.MISSING)
        needed = sum((one.default, one.default_factory) == missing for one in fields)
        return [one.name for one in fields], needed
    if hasattr(row, "_fields"):
        return list(row._fields), len(row._fields) - len(row._field_defaults)
    return None


def test_their_columns_are_the_fields_of_their_rows(connection: psycopg.Connection[Any]) -> None:
    """In the same order. What a statement leaves out at the end has a default."""
    faults = {}
    for name, row in fetches():
        found, expected = columns_of(connection, name), fields_of(row)
        if expected is None:
            is_right = len(found) == 1 or row is columns
        else:
            fields, needed = expected
            is_right = found == fields[: len(found)] and len(found) >= needed
        if not is_right:
            faults[name] = (row, found)
    assert faults == {}


def test_each_statement_is_used_and_each_use_has_one() -> None:
    used = {name for name, _ in uses()}
    assert used == set(STATEMENTS)


def test_only_the_database_package_names_statements() -> None:
    assert {where for _, where in uses() if not where.startswith("fluxqueue/db/")} == set()


def test_a_fragment_stands_for_its_text() -> None:
    text = (
        "-- fragment: few\n-- Why.\nLIMIT 3\n\n-- name: some\n-- What.\nSELECT a -- include: few\n"
    )
    assert dict(read_statements(text, "x.sql")) == {"some": "SELECT a LIMIT 3"}
    with pytest.raises(ValueError, match="some includes unknown fragments"):
        dict(read_statements("-- name: some\nSELECT a -- include: few\n", "x.sql"))

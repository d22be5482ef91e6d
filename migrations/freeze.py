"""Freeze ``fluxqueue/db/tables.py`` and ``fluxqueue/db/sql`` as ``sql/0002_fluxqueue_*.sql``.

Developers run ``python migrations/freeze.py`` after a change of the tables, views or triggers,
until the first release. After it, revision 0002 never changes, and a change is a new revision
(README.md). A test compares the frozen text with the code.
"""

from __future__ import annotations

import re
from pathlib import Path

from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable, DDLElement

from fluxqueue.db import tables

HERE = Path(__file__).resolve().parent
SOURCES = Path(tables.__file__).with_name("sql")


def table_statements() -> list[str]:
    """Return the statements that create all tables, always in the same order."""
    found: list[DDLElement] = []
    for table in tables.metadata.tables.values():  # in the order of tables.py: referred ones first
        found.append(CreateTable(table))
        found += [CreateIndex(i) for i in sorted(table.indexes, key=lambda i: str(i.name))]
    return [_text(element) for element in found]


def _text(element: DDLElement) -> str:
    dialect = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call]
    lines = str(element.compile(dialect=dialect)).replace("\t", "    ").splitlines()
    return "\n".join(line.rstrip() for line in lines).strip() + ";"


def upgrade_text() -> str:
    """Tables first, then the files of views, functions and triggers in the order of their names."""
    parts = ["-- Written by migrations/freeze.py; not to be edited.", *table_statements()]
    parts += [
        f"-- {path.name}\n{path.read_text(encoding='utf-8').strip()}"
        for path in sorted(SOURCES.glob("*.sql"))
    ]
    return "\n\n".join(parts) + "\n"


def downgrade_text() -> str:
    """Everything that ``upgrade_text`` creates, dropped in the opposite order."""
    sources = "\n".join(p.read_text(encoding="utf-8") for p in sorted(SOURCES.glob("*.sql")))
    views = re.findall(r"^CREATE VIEW (\w+)", sources, re.MULTILINE)
    functions = re.findall(r"^CREATE FUNCTION (\w+)", sources, re.MULTILINE)
    # Those of procrastinate's tables, which stay.
    indexes = re.findall(r"^CREATE INDEX (\w+) ON procrastinate\.", sources, re.MULTILINE)
    lines = ["-- Written by migrations/freeze.py; not to be edited."]
    lines += [f"DROP INDEX procrastinate.{name};" for name in reversed(indexes)]
    lines += [f"DROP VIEW {name};" for name in reversed(views)]
    # Functions take rows of tables, and triggers of tables call functions: CASCADE drops these.
    lines += [f"DROP FUNCTION {name} CASCADE;" for name in reversed(functions)]
    lines += [f"DROP TABLE {table.name};" for table in reversed(tables.metadata.tables.values())]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write both files."""
    (HERE / "sql" / "0002_fluxqueue_up.sql").write_text(upgrade_text(), encoding="utf-8")
    (HERE / "sql" / "0002_fluxqueue_down.sql").write_text(downgrade_text(), encoding="utf-8")


if __name__ == "__main__":
    main()

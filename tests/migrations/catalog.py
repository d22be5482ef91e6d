"""What a database contains, as text that two states can be compared by."""

from __future__ import annotations

import psycopg

_QUERY = b"""
WITH ours AS (
    SELECT oid, nspname FROM pg_namespace WHERE nspname IN ('public', 'procrastinate')
), relations AS (
    SELECT c.*, o.nspname FROM pg_class c JOIN ours o ON o.oid = c.relnamespace
    WHERE c.relname NOT LIKE 'alembic%'
)
SELECT 'schema ' || nspname FROM ours
UNION ALL
SELECT format('relation %s.%s %s', nspname, relname, relkind) FROM relations
UNION ALL
SELECT format('column %s.%s.%s %s null=%s default=%s identity=%s comment=%s', r.nspname, r.relname,
              a.attname, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull,
              pg_get_expr(d.adbin, d.adrelid), a.attidentity, col_description(r.oid, a.attnum))
FROM relations r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum
UNION ALL
SELECT format('constraint %s.%s %s', r.relname, k.conname, pg_get_constraintdef(k.oid))
FROM pg_constraint k JOIN relations r ON r.oid = k.conrelid
UNION ALL
SELECT 'index ' || pg_get_indexdef(r.oid) FROM relations r WHERE r.relkind = 'i'
UNION ALL
SELECT format('view %s %s', r.relname, pg_get_viewdef(r.oid)) FROM relations r WHERE r.relkind = 'v'
UNION ALL
SELECT 'trigger ' || pg_get_triggerdef(t.oid)
FROM pg_trigger t JOIN relations r ON r.oid = t.tgrelid WHERE NOT t.tgisinternal
UNION ALL
SELECT 'function ' || pg_get_functiondef(p.oid)
FROM pg_proc p JOIN ours o ON o.oid = p.pronamespace
UNION ALL
SELECT format('type %s %s', t.typname, (SELECT string_agg(e.enumlabel, ',' ORDER BY e.enumsortorder)
                                        FROM pg_enum e WHERE e.enumtypid = t.oid))
FROM pg_type t JOIN ours o ON o.oid = t.typnamespace
WHERE t.typname NOT LIKE '%alembic%'
"""


def contents(url: str) -> frozenset[str]:
    """Return one line per schema, relation, column, constraint, index, view, trigger, function."""
    with psycopg.connect(url) as connection:
        return frozenset(str(row[0]) for row in connection.execute(_QUERY))

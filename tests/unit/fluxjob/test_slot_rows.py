"""The fields of rows and their SQL are the same list, in the same order."""

from __future__ import annotations

from fluxqueue.db.store.slot_rows import POD_SQL, SLOT_SQL, PodFields, SlotFields, array


def test_fields_and_statements_agree() -> None:
    assert tuple(SLOT_SQL) == SlotFields._fields
    assert tuple(POD_SQL) == PodFields._fields
    assert array({"a": "x.a", "b": "x.b"}) == "jsonb_build_array(x.a, x.b)"

"""A manifest or a jobspec, found in the text of a file. Pure.

``fluxqueue explain -f`` and ``submission`` call it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from fluxqueue.errors import InvalidInput
from fluxqueue.workload.kinds.table import find_kind


def read_document(text: str, where: str) -> dict[str, Any]:
    """Return the first workload of a YAML or JSON text, or else its first jobspec.

    Raises
    ------
    InvalidInput
        It contains neither.
    """
    try:
        documents = [one for one in yaml.safe_load_all(text) if one]
    except yaml.YAMLError as error:
        raise InvalidInput(f"is neither YAML nor JSON: {error}", where=where) from None
    for one in documents:
        if isinstance(one, dict) and is_workload(one):
            return one
    for one in documents:
        if isinstance(one, list):
            one = {"resources": one}
        if isinstance(one, dict) and "resources" in one:
            return one
    raise InvalidInput(
        "contains no Job, Pod or jobspec", where=where, hint="use a manifest of one of these"
    )


def is_workload(document: Mapping[str, Any]) -> bool:
    """Return whether it is a manifest of a kind that can be queued."""
    group = str(document.get("apiVersion") or "").rpartition("/")[0]
    return find_kind(group, str(document.get("kind") or "")) is not None

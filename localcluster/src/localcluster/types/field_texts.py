"""Descriptions of built-in fields for ``kubectl explain``.

They are read from the files of the installed ``kubernetes`` client package, because its models
carry the API's own texts. The package is not imported, because that takes a second. If it is
missing or has another form, there are no texts.
"""

from __future__ import annotations

import re
from ast import literal_eval
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

_ALIAS = re.compile(r'serialization_alias="((?:[^"\\]|\\.)*)"')
_TEXT = re.compile(r'description=("(?:[^"\\]|\\.)*")')
_FIELD = re.compile(r"^    (\w+): .*= Field\((.*)\)$", re.MULTILINE)
_CLASS = re.compile(
    r'^class \w+\(BaseModel\):\n    """\n    (.*?)\n    """', re.MULTILINE | re.DOTALL
)
_MODULES = {
    "Event": "core_v1_event",
    "EventsEvent": "events_v1_event",
    "EventSeries": "core_v1_event_series",
    "EventsEventSeries": "events_v1_event_series",
    "Subject": "rbac_v1_subject",
    "TokenRequest": "authentication_v1_token_request",
    "AdmissionWebhookClientConfig": "admissionregistration_v1_webhook_client_config",
    "AdmissionServiceReference": "admissionregistration_v1_service_reference",
    "WebhookClientConfig": "apiextensions_v1_webhook_client_config",
    "ServiceReference": "apiextensions_v1_service_reference",
    "ResourceClaimRef": "core_v1_resource_claim",
}


@lru_cache(maxsize=1)
def _models() -> Path | None:
    found = find_spec("kubernetes")
    if found is None or not found.submodule_search_locations:
        return None
    folder = Path(found.submodule_search_locations[0]) / "client" / "models"
    return folder if folder.is_dir() else None


def _snake(name: str) -> str:
    text = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", text).lower()


@lru_cache(maxsize=512)
def descriptions(type_name: str) -> dict[str, str]:
    """Return texts by field name. "" has the type's own text. Empty if there is no source."""
    folder = _models()
    if folder is None or not type_name:
        return {}
    path = folder / f"{_MODULES.get(type_name, 'v1_' + _snake(type_name))}.py"
    try:
        source = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    texts: dict[str, str] = {}
    own = _CLASS.search(source)
    if own is not None:
        texts[""] = " ".join(own[1].partition("Attributes:")[0].split())
    for match in _FIELD.finditer(source):
        name, text = _ALIAS.search(match[2]), _TEXT.search(match[2])
        if text is not None:
            texts[name[1] if name is not None else match[1]] = literal_eval(text[1])
    return texts

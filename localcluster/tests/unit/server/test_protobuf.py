"""Protobuf bodies as kubectl writes them."""

from __future__ import annotations

import pytest

from localcluster.server.protobuf import decode_body
from localcluster.types.refusals import StatusError


def field(number: int, value: bytes | int) -> bytes:
    """One field: a varint or a length-delimited one."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    """Base 128, least significant first."""
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def envelope(kind: str, raw: bytes, api_version: str = "v1") -> bytes:
    """``runtime.Unknown`` around a message."""
    meta = field(1, api_version.encode()) + field(2, kind.encode())
    return b"k8s\x00" + field(1, meta) + field(2, raw)


META = field(1, field(1, b"x") + field(8, b"") + field(11, field(1, b"k") + field(2, b"v")))


def test_names_labels_and_unset_times() -> None:
    """ObjectMeta. An empty creationTimestamp is not set."""
    assert decode_body(envelope("ConfigMap", META)) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x", "labels": {"k": "v"}},
    }


def test_bytes_quantities_numbers_and_lists() -> None:
    """Secrets travel as base64, quantities as text, negative numbers as ten bytes."""
    data = field(2, field(1, b"key") + field(2, b"\x00\xff"))
    assert decode_body(envelope("Secret", META + data))["data"] == {"key": "AP8="}
    limits = field(1, field(1, b"cpu") + field(2, field(1, b"500m")))
    container = field(1, b"main") + field(3, b"sleep") + field(3, b"5") + field(8, limits)
    template = field(2, field(2, container))
    spec = field(6, template) + field(7, (1 << 64) - 1) + field(10, 1)
    job = decode_body(envelope("Job", META + field(2, spec), "batch/v1"))
    assert job["spec"]["suspend"] is True
    assert job["spec"]["backoffLimit"] == -1
    main = job["spec"]["template"]["spec"]["containers"][0]
    assert main["command"] == ["sleep", "5"]
    assert main["resources"] == {"limits": {"cpu": "500m"}}


@pytest.mark.parametrize(
    ("wire", "value"), [(field(2, 3), 3), (field(1, 1) + field(3, b"5%"), "5%")]
)
def test_int_or_string(wire: bytes, value: int | str) -> None:
    """Type 0 is a number, 1 a string."""
    body = envelope("PodDisruptionBudget", META + field(2, field(1, wire)), "policy/v1")
    assert decode_body(body)["spec"]["minAvailable"] == value


def test_unknown_kinds_and_fields_are_refused_not_dropped() -> None:
    """415 that names what is not known and the way out."""
    for body in (envelope("Gadget", META), envelope("ConfigMap", META + field(99, b"x"))):
        with pytest.raises(StatusError, match="send JSON") as caught:
            decode_body(body)
        assert caught.value.code == 415


@pytest.mark.parametrize("body", [b"", b"k8s", b"k8s\x00\x0a\xff", b'{"kind":"Pod"}'])
def test_broken_bodies_are_400(body: bytes) -> None:
    """No envelope, or one that ends too early."""
    with pytest.raises(StatusError) as caught:
        decode_body(body)
    assert caught.value.code == 400

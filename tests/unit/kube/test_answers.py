"""What answers of the API server become."""

from __future__ import annotations

import orjson
import pytest

from fluxqueue.errors import ApiError, ApiUnavailable, Conflict, Gone, Invalid, NotFound
from fluxqueue.kube.answers import as_error, decode, retry_after_s


def _status(code: int, reason: str, message: str, **details: object) -> bytes:
    return orjson.dumps(
        {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}
    )


@pytest.mark.parametrize(
    ("code", "kind"),
    [(404, NotFound), (409, Conflict), (410, Gone), (422, Invalid), (403, ApiError)],
)
def test_refusals_become_their_own_exception(code: int, kind: type[ApiError]) -> None:
    """Each code that callers tell apart has a type. Reason, code and body survive."""
    error = as_error(code, {}, _status(code, "Why", "because"), what="GET /x")
    assert type(error) is kind
    assert isinstance(error, ApiError)
    assert (error.code, error.reason, error.body["message"]) == (code, "Why", "because")
    assert str(error) == f"{code} Why: GET /x: because"


def test_a_namespace_that_ends_is_told_from_other_refusals() -> None:
    """Only the cause tells: code and reason are those of missing rights."""
    cause = {"reason": "NamespaceTerminating", "field": "metadata.namespace"}
    ending = as_error(403, {}, _status(403, "Forbidden", "m", causes=[cause]))
    forbidden = as_error(403, {}, _status(403, "Forbidden", "m"))
    assert isinstance(ending, ApiError)
    assert isinstance(forbidden, ApiError)
    assert ending.is_namespace_ending
    assert not forbidden.is_namespace_ending


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_overload_and_failure_are_unavailability(code: int) -> None:
    """Time can mend these, so they carry the server's wish for a pause."""
    error = as_error(code, {"Retry-After": "7"}, _status(code, "X", "m"))
    assert isinstance(error, ApiUnavailable)
    assert error.is_retryable
    assert error.retry_after_s == 7


def test_retry_after_from_status_details() -> None:
    """Without the header the figure in details counts."""
    error = as_error(504, {}, _status(504, "Timeout", "m", retryAfterSeconds=1))
    assert isinstance(error, ApiUnavailable)
    assert error.retry_after_s == 1


def test_answers_of_proxies_are_no_status() -> None:
    """An error page keeps its code, and its text becomes the message."""
    error = as_error(404, {}, b"<html>nothing here</html>")
    assert isinstance(error, NotFound)
    assert "nothing here" in str(error)


def test_a_login_page_is_no_answer() -> None:
    """An empty body of a redirection once looked like an empty list."""
    error = as_error(302, {"Location": "https://login.example.com/"}, b"", what="GET /api")
    assert isinstance(error, ApiError)
    assert "GET /api: the server sends us to https://login.example.com/. Fix: " in str(error)
    assert "another place" in str(as_error(303, {}, b"<html>"))


def test_json_that_is_none() -> None:
    """A page with code 200 without JSON is an unavailable server, not a crash."""
    with pytest.raises(ApiUnavailable, match="not JSON"):
        decode(b"<html>")


@pytest.mark.parametrize(
    ("value", "expected"), [("3", 3.0), ("0", 0.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None)]
)
def test_retry_after_header(value: str, expected: float | None) -> None:
    """Seconds are read. Dates (never sent by API servers) are ignored."""
    assert retry_after_s({"Retry-After": value}) == expected

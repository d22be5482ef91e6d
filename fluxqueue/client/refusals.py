"""What a refusal of the API server says to a user, in one sentence.

The command line prints it, and the exceptions of the client have it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fluxqueue.errors import ApiError

_DENIED = re.compile(
    r"(?:admission webhook|ValidatingAdmissionPolicy) .*? denied (?:the )?request: "
)


def sentence(error: ApiError) -> str:
    """Return the message of the API server. For a webhook or policy it is only their sentence."""
    text = str(error.body.get("message") or error)
    if found := _DENIED.search(text):
        return text[found.end() :]
    if error.code == 403 and "cannot" in text:
        return f"{text} (ask for one of the roles in docs/admin/security.md)"
    if error.code == 404 and "could not find the requested resource" in text:
        where = "docs/admin/install.md"
        return f"this cluster serves no FluxJobs (is fluxqueue installed here? see {where})"
    if error.code == 401:
        return (
            "the API server does not accept the credentials of the kubeconfig "
            "(they may have expired: log in again, or see kubectl auth whoami)"
        )
    return text


@contextmanager
def in_words() -> Iterator[None]:
    """Give refusals of the API server the text of ``sentence``, as the command line prints it."""
    try:
        yield
    except ApiError as error:
        error.args = (sentence(error),)
        raise

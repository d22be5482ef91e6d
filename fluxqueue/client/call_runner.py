"""Runs one call in a pod, and tells its value to the client. ``calls`` ships the text of this file.

It is the program of the pod (``python3 -c``), so it imports only the standard library and
cloudpickle, and never fluxqueue. The answer is a line of JSON in the container's termination
message, which the API server keeps in the status of the pod. An answer that is too long for that
goes to the log in marked lines.
"""

import base64
import json
import os
import pickle
import sys
import traceback
import zlib
from pathlib import Path
from typing import Any

MESSAGE_MAX = 4000
"""Bytes of a termination message. Kubernetes cuts at 4096."""
LOGGED_MAX = 6 * 1024 * 1024
"""Longest answer in a log, in bytes. Kubelets rotate logs at 10 MiB."""
LINE = 8000
MARK = "fluxqueue-answer"
MESSAGE_FILE = "/dev/termination-log"
MESSAGE_VARIABLE = "FLUXQUEUE_CALL_MESSAGE"
"""Another file for the message, if the pod has its own ``terminationMessagePath``."""

Answer = dict[str, Any]


def packed(data: bytes) -> str:
    """Return bytes as text."""
    return base64.b64encode(zlib.compress(data)).decode("ascii")


def read_call() -> tuple[Any, Any, Any]:
    """Return the function of this pod, its arguments and its keyword arguments."""
    wanted, here = os.environ["FLUXQUEUE_CALL_PYTHON"], "%d.%d" % sys.version_info[:2]  # noqa: UP031
    if wanted != here:
        raise RuntimeError(
            f"the function was made with Python {wanted}, and the image has Python {here}. "
            f"Fix: use an image with Python {wanted}"
        )
    count = int(os.environ["FLUXQUEUE_CALL_PARTS"])
    text = "".join(os.environ[f"FLUXQUEUE_CALL_{number}"] for number in range(count))
    try:
        import cloudpickle  # noqa: F401  functions of a program need it to be read
    except ImportError:
        raise RuntimeError(
            "the image has no cloudpickle. Fix: install cloudpickle in the image"
        ) from None
    function, calls = pickle.loads(zlib.decompress(base64.b64decode(text)))  # noqa: S301
    index = int(os.environ.get("JOB_COMPLETION_INDEX") or 0) if len(calls) > 1 else 0
    args, kwargs = calls[index]
    return function, args, kwargs


def answer_of(value: Any) -> Answer:
    """Return the answer for a value. One that cannot be sent becomes an error."""
    import cloudpickle

    try:
        text = packed(cloudpickle.dumps(value))
    except Exception as error:  # noqa: BLE001  any class can fail in a way of its own
        return failure(error, "the value cannot be sent back: ")
    if len(text) > LOGGED_MAX:
        return refusal(
            f"the value has {len(text)} bytes, at most {LOGGED_MAX} can be sent back. "
            "Fix: write it to a volume, and return its path"
        )
    return {"is": "value", "data": text}


def refusal(message: str) -> Answer:
    """Return an answer that has a message alone."""
    return {"is": "refused", "message": message[:1500]}


def failure(error: BaseException, what: str = "") -> Answer:
    """Return the answer for an exception: itself if it can be sent, and where it was raised."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    try:
        import cloudpickle

        data = cloudpickle.dumps((error.with_traceback(None), what + "".join(lines)[-3000:]))
        pickle.loads(data)  # noqa: S301  some exceptions can be written and not read
    except Exception:  # noqa: BLE001  any class can fail in a way of its own
        return refusal(f"{what}{type(error).__name__}: {error}")
    return {"is": "error", "data": packed(data)}


def tell(answer: Answer) -> None:
    """Write the answer where the client finds it."""
    text = json.dumps(answer)
    if len(text) > MESSAGE_MAX:
        lines = [text[at : at + LINE] for at in range(0, len(text), LINE)]
        sys.stdout.write("\n" + "".join(f"{MARK} {line}\n" for line in lines))
        sys.stdout.flush()
        text = json.dumps({"is": "logged", "lines": len(lines)})
    Path(os.environ.get(MESSAGE_VARIABLE) or MESSAGE_FILE).write_text(text, encoding="utf-8")


def main() -> int:
    """Make the call and tell its answer. Return the exit code."""
    try:
        function, args, kwargs = read_call()
    except Exception as error:  # noqa: BLE001  unpickling runs the code of the user
        tell(refusal(f"{type(error).__name__}: {error}"))
        return 1
    try:
        value = function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001  the client raises it
        traceback.print_exc()
        tell(failure(error))
        return 1
    answer = answer_of(value)
    tell(answer)
    return 0 if answer["is"] == "value" else 1


if __name__ == "__main__":
    sys.exit(main())

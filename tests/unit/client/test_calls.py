"""A call and its answer: the program of the pod runs here, with the interpreter of the tests."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fluxqueue.client.call_runner import MARK, MESSAGE_VARIABLE
from fluxqueue.client.calls import (
    CALL_MAX_BYTES,
    RemoteTraceback,
    call_environment,
    read_value,
    runner_command,
)
from fluxqueue.errors import InvalidInput, WorkFailed
from fluxqueue.kube.client import KubeClient

pytest.importorskip("cloudpickle")


class Ended:
    """A container that has run, as its pod shows it."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        file = folder / "message"
        file.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, *runner_command()[1:]],
            env=os.environ | environ | {MESSAGE_VARIABLE: str(file)},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        self.code, self.log = done.returncode, done.stdout
        self.message = file.read_text() if file.exists() else done.stderr

    def pod(self) -> dict[str, Any]:
        """The pod of the container."""
        state = {"terminated": {"exitCode": self.code, "message": self.message}}
        return {
            "metadata": {"name": "p", "namespace": "n"},
            "spec": {"containers": [{"name": "main"}]},
            "status": {
                "phase": "Failed" if self.code else "Succeeded",
                "containerStatuses": [{"name": "main", "state": state}],
            },
        }

    async def value(self) -> Any:
        """What the client gets."""
        client: Any = _Logs(self.log)
        return await read_value(client, self.pod())


class _Logs(KubeClient):
    """A client of a server that has this log."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def get_text(self, path: str, *, timeout_s: float | None = None) -> str:
        """The last lines."""
        count = int(path.partition("tailLines=")[2].partition("&")[0])
        return "\n".join(self._text.splitlines()[-count:])


def run(folder: Path, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Ended:
    """Call it in a process of its own."""
    return Ended(folder, dict(call_environment(function, [(args, kwargs)])))


async def test_a_value_comes_back_in_the_message(tmp_path: Path) -> None:
    """Also None, and an object of a class that is defined here."""

    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

    assert await run(tmp_path, lambda: None).value() is None
    assert await run(tmp_path, sorted, [3, 1, 2], reverse=True).value() == [3, 2, 1]
    found = run(tmp_path, lambda x: Point(x + 1), 4)
    assert (await found.value()).x == 5
    assert (found.code, found.log) == (0, "")


async def test_a_long_value_comes_back_in_the_log(tmp_path: Path) -> None:
    """Behind what the function has printed, with and without the end of a line."""

    def work() -> bytes:
        print("working", end="")
        return bytes(range(256)) * 200 + os.urandom(30_000)

    found = run(tmp_path, work)
    assert len(found.message) < 100
    assert found.log.startswith(f"working\n{MARK} ")
    value = await found.value()
    assert value[:51_200] == bytes(range(256)) * 200


async def test_a_log_that_was_cut_is_said_so(tmp_path: Path) -> None:
    found = run(tmp_path, os.urandom, 30_000)
    found.log = "\n".join(found.log.splitlines()[:-1])
    with pytest.raises(WorkFailed, match=r"its log has \d of \d lines of the answer"):
        await found.value()


async def test_an_error_is_raised_with_its_class_and_its_place(tmp_path: Path) -> None:
    """Also SystemExit: it is an error of the function."""

    def fails(how: type[BaseException]) -> None:
        raise how("broken", 3)

    for how in (KeyError, SystemExit):
        found = run(tmp_path, fails, how)
        assert found.code == 1
        with pytest.raises(how) as caught:
            await found.value()
        assert caught.value.args == ("broken", 3)
        assert isinstance(caught.value.__cause__, RemoteTraceback)
        assert "in fails" in str(caught.value.__cause__)


async def test_what_cannot_be_sent_back_is_said(tmp_path: Path) -> None:
    """A value without a pickle, and an exception that cannot be read."""

    class Odd(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} and {two}")

    def fails() -> None:
        raise Odd(1, 2)

    with pytest.raises(TypeError, match="cannot"):
        await run(tmp_path, lambda: (one for one in "abc")).value()
    with pytest.raises(WorkFailed, match="Odd: 1 and 2"):
        await run(tmp_path, fails).value()
    with pytest.raises(WorkFailed, match="Fix: write it to a volume"):
        await run(tmp_path, os.urandom, 7_000_000).value()


async def test_an_image_that_does_not_fit_is_named(tmp_path: Path) -> None:
    """Another Python, and one without cloudpickle."""
    environ = dict(call_environment(len, [(("abc",), {})]))
    with pytest.raises(WorkFailed, match=r"made with Python 3\.7.*Fix: use an image"):
        await Ended(tmp_path, environ | {"FLUXQUEUE_CALL_PYTHON": "3.7"}).value()
    (tmp_path / "cloudpickle.py").write_text("raise ImportError\n")
    with pytest.raises(WorkFailed, match="Fix: install cloudpickle in the image"):
        await Ended(tmp_path, environ).value()


async def test_each_index_of_an_array_has_its_call(tmp_path: Path) -> None:
    environ = dict(call_environment(pow, [((2, n), {}) for n in range(3)]))
    values = [await Ended(tmp_path, environ | {"JOB_COMPLETION_INDEX": str(n)}).value()
              for n in range(3)]  # fmt: skip
    assert values == [1, 2, 4]


async def test_a_container_without_an_answer_is_said_so(tmp_path: Path) -> None:
    """It was killed, or is not ours."""
    found = run(tmp_path, os._exit, 9)
    found.message = ""
    with pytest.raises(WorkFailed, match="it has ended without an answer"):
        await found.value()
    found.message = "[1]"
    with pytest.raises(WorkFailed, match="it has ended without an answer"):
        await found.value()


def test_what_cannot_be_sent_to_a_pod_is_refused() -> None:
    """Before anything is created, with the way out."""
    with pytest.raises(InvalidInput, match=r"cannot be sent to a pod.*Fix: open files"):
        call_environment(len, [((threading.Lock(),), {})])
    with pytest.raises(InvalidInput, match="Fix: put the data on a volume"):
        call_environment(len, [((os.urandom(CALL_MAX_BYTES),), {})])


def test_a_call_is_cut_into_variables_that_linux_takes() -> None:
    """An argument or variable of a process has 128 KiB at most."""
    environment = dict(call_environment(len, [((os.urandom(200_000),), {})]))
    parts = [
        environment[f"FLUXQUEUE_CALL_{n}"] for n in range(int(environment["FLUXQUEUE_CALL_PARTS"]))
    ]
    assert len(parts) == 3
    assert max(map(len, parts)) < 100_000
    assert base64.b64decode("".join(parts))
    assert len(runner_command()[2]) < 100_000
    assert json.dumps(environment)


def test_a_function_of_a_module_that_is_not_installed_is_sent_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module lies beside the user's program, and not in the image."""
    (tmp_path / "beside.py").write_text("FACTOR = 6\ndef times(n):\n    return n * FACTOR\n")
    monkeypatch.syspath_prepend(tmp_path)
    import beside  # type: ignore[import-not-found]

    environ = dict(call_environment(beside.times, [((7,), {})]))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    found = Ended(elsewhere, environ)
    import asyncio

    assert asyncio.run(found.value()) == 42

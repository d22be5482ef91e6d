"""How the commands of a page are read, and what of their output is compared."""

from __future__ import annotations

import pytest

from tests.support.console import agree, commands

BLOCK = """\
$ kubectl get pods
NAME
pi-x2c4v
$ printf 'a\\n' \\
    | cat
a
$ cat <<END
$ not a command
END
$ true
"""


def test_commands_go_on_over_lines() -> None:
    """By a backslash, and to the end of a here-document."""
    found = [(one.text, one.shown) for one in commands(BLOCK)]
    assert found == [
        ("kubectl get pods", "NAME\npi-x2c4v\n"),
        ("printf 'a\\n' \\\n    | cat", "a\n"),
        ("cat <<END\n$ not a command\nEND", ""),
        ("true", ""),
    ]
    assert [one.is_reading for one in commands(BLOCK)] == [True, False, False, False]


@pytest.mark.parametrize(
    ("shown", "printed", "is_same"),
    [
        ("a  b\n", "a b", True),
        ("a\n", "b\n", False),
        ("a\n", "a\nb\n", False),
        ("...\nb\n", "a\na\nb\n", True),
        ("...\nb\n", "b\n", True),
        ("...\nb\n", "b\nc\n", False),
        ("pi-x2c4v Running 4s\n", "pi-zz9wv Running 2m3s\n", True),
        ("pi-x2c4v Running\n", "pi-6574d Running\n", True),
        ("pi-x2c4v Running\n", "pi-x2c4v Pending\n", False),
        ("pi-small\n", "pi-large\n", False),
        ("pi-22222 node-1\npi-44444 node-2\n", "pi-55555 node-2\npi-66666 node-1\n", True),
        ("pi-22222 node-1\npi-44444 node-2\n", "pi-55555 node-2\npi-66666 node-2\n", False),
        ("pi-22222 b\nends\npi-44444 a\n", "pi-22222 a\nends\npi-44444 b\n", False),
        ("17 train 2026-11-22T17:05:20Z\n", "3 train 2031-01-01T00:00:00Z\n", True),
        ("waits for job 3 until 19:07 UTC\n", "waits for job 14 until 03:59 UTC\n", True),
        ("train-job 3 Running 4\n", "train-job 17 Running 4\n", True),
        ("train-job 3 Running 4\n", "train-job 3 Running 5\n", False),
        ("4 slots\n", "4 slots\n", True),
        ("on node-1\n", "on node-2\n", False),
        ("size 4\n", "size 5\n", False),
        (
            "a waits for node-1 and\N{HORIZONTAL ELLIPSIS}\n",
            "a waits for node-1\N{HORIZONTAL ELLIPSIS}\n",
            True,
        ),
        (
            "a waits for node-1 and\N{HORIZONTAL ELLIPSIS}\n",
            "a waits for node-2\N{HORIZONTAL ELLIPSIS}\n",
            False,
        ),
    ],
)
def test_times_and_random_names_are_not_compared(shown: str, printed: str, is_same: bool) -> None:
    assert agree(shown, printed) is is_same

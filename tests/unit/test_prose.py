"""``docs/prose.py``: what it counts and refuses, and a list of exceptions that only shrinks."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.support.wheel import ROOT

prose: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "prose.py"))
main, figures_of, Figures = prose["main"], prose["figures_of"], prose["Figures"]

PLAIN = "The worker locks the row. The cycle then reads the queue in order.\n"
LONG = f"The worker {'locks the next row and ' * 8}goes on.\n"
HEAD = "# the list\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with one plain page and an empty list."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page1.md").write_text(PLAIN)
    (tmp_path / prose["EXCEPTIONS"]).write_text(HEAD)
    return tmp_path


def listed(root: Path) -> list[str]:
    """The list's lines, without its head."""
    lines = (root / prose["EXCEPTIONS"]).read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


@pytest.mark.long("`make lint` says the same")
def test_every_path_is_within_its_bounds_or_listed() -> None:
    """What `make prose` says of this tree."""
    found = prose["tree"](ROOT)
    exceptions = prose["read_exceptions"]((ROOT / prose["EXCEPTIONS"]).read_text(encoding="utf-8"))
    assert prose["problems"](found, exceptions) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The row waits; the cycle reads it.", {"semicolons": 1}),
        ("The worker whose term has ended stops.", {"who": 1}),
        ("Whoever holds the lock lets the pod go.", {"banned": 2}),
        ("The Job owes a release, and nobody is told.", {"banned": 3}),
        ("A command such as `whoever; who` is exempt.", {}),
        ("The log ends with a whole sentence.\n\n```\nnobody; who\n```", {}),
        ("| who | nobody; |\n|---|---|", {}),
        ("Read [the page of the owner](he.md) first.", {}),
        ("Run it like this:\n\n    python who.py; echo nobody", {}),
        (LONG, {"long": 1}),
    ],
)
def test_what_is_counted(text: str, expected: dict[str, int]) -> None:
    """Prose counts. Code, tables and addresses do not."""
    found = figures_of(prose["paragraphs"](text))._asdict()
    counts = {name: found[name] for name in ("long", "semicolons", "who", "banned")}
    assert {name: count for name, count in counts.items() if count} == expected


def test_each_docstring_and_block_of_comments_stands_alone() -> None:
    """Two comments without a full stop are not one long sentence."""
    source = (
        '"""Say what\n\nAnd why."""\na = 1  # seconds of rest\nb = 2  # noqa: S101\n# one\n# two\n'
    )
    text = prose["paragraphs"](prose["python_text"](source))
    assert text == ["Say what", "And why.", "seconds of rest", "one two"]


def test_comments_of_sql_are_read() -> None:
    """A statement between two comments separates them."""
    text = prose["commented_text"]("-- One rule\n-- of rows.\nSELECT 1; -- no\n-- Another.\n", "--")
    assert prose["paragraphs"](text) == ["One rule of rows.", "Another."]


def test_a_new_page_over_a_bound_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the path, the figure and its bound."""
    assert main([], root) == 0
    (root / "docs" / "new1.md").write_text("The row waits; the cycle; the worker.\nNobody knows.\n")
    assert main([], root) == 1
    said = capsys.readouterr().out
    assert "docs/new1.md: semicolons 2 (at most 1)\n" in said
    assert "docs/new1.md: banned 1 (at most 0)\n" in said


def test_a_short_page_may_have_one_long_sentence(root: Path) -> None:
    """One is always allowed, two are over the bound."""
    (root / "docs" / "page1.md").write_text(PLAIN + LONG)
    assert main([], root) == 0
    (root / "docs" / "page1.md").write_text(PLAIN + LONG + LONG)
    assert main([], root) == 1


def test_a_listed_path_may_get_better_and_not_worse(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Up to its figures and no further."""
    line = prose["exception_line"]("docs/page1.md", Figures(17, 28, 1, 3, 0, 0))
    (root / prose["EXCEPTIONS"]).write_text(f"{HEAD}{line}\n")
    (root / "docs" / "page1.md").write_text(PLAIN + "One row; one job; one pod.")
    assert main([], root) == 0
    (root / "docs" / "page1.md").write_text(
        PLAIN + "One row; one job; one pod; one node; one term."
    )
    assert main([], root) == 1
    assert "docs/page1.md: semicolons 4 (at most 3)\n" in capsys.readouterr().out


def test_an_exception_that_nothing_needs_is_refused(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a page that was converted, of one that is gone, and one that stands twice."""
    lines = [
        prose["exception_line"](path, Figures(17, 28, 1, 3, 0, 0))
        for path in ("docs/page1.md", "docs/gone1.md", "docs/gone1.md")
    ]
    (root / prose["EXCEPTIONS"]).write_text(HEAD + "\n".join(lines) + "\n")
    assert main([], root) == 1
    said = capsys.readouterr().out.splitlines()[:3]
    assert said == [
        "docs/gone1.md: listed twice",
        "docs/gone1.md: listed, and not there",
        "docs/page1.md: needs no exception any more",
    ]
    assert main(["--update"], root) == 0
    assert listed(root) == []
    assert main([], root) == 0


def test_an_update_lowers_and_never_raises(root: Path) -> None:
    """It adds no path, and the head stays."""
    bad = "One row; one job; one pod."
    (root / "docs" / "page1.md").write_text(bad)
    (root / "docs" / "new1.md").write_text(bad)
    line = prose["exception_line"]("docs/page1.md", Figures(17, 28, 0, 9, 2, 0))
    (root / prose["EXCEPTIONS"]).write_text(f"{HEAD}{line}\n{line}\n")
    assert main(["--update"], root) == 0
    assert listed(root) == [prose["exception_line"]("docs/page1.md", Figures(6, 6, 0, 2, 0, 0))]
    (root / "docs" / "page1.md").write_text(f"{bad} One more node; one more term.")
    assert main(["--update"], root) == 0
    assert listed(root) == [prose["exception_line"]("docs/page1.md", Figures(6, 6, 0, 2, 0, 0))]
    assert main(["docs/page1.md"], root) == 1


def test_the_worst_sentences_are_shown_with_what_to_say(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first line can be copied into the list."""
    (root / "docs" / "page1.md").write_text(f"{PLAIN}Nobody heeds it; nobody ever will.")
    assert main(["--worst", "1", "docs/page1.md"], root) == 0
    first, _, sentence, *hints = capsys.readouterr().out.splitlines()
    assert prose["read_exceptions"](first)[0][0] == "docs/page1.md"
    assert sentence.strip() == "Nobody heeds it; nobody ever will."
    assert [hint.split(":")[0].strip() for hint in hints] == ["'nobody'", "'heeds'"]
    with pytest.raises(SystemExit):
        main(["docs/none1.md"], root)


def test_what_the_code_says_to_users_is_measured() -> None:
    """Statements, keys and docstrings are no messages. A semicolon ends a sentence in one."""
    source = '''
"""Docstring of this module, not a message."""
refuse(f"queue {name} is stopped; ask its administrator", "SELECT name FROM queues WHERE id = 1")
KEY = "fluxqueue/gang: x=y a/b/c --flag"
'''
    assert prose["literal_text"](source) == "queue X is stopped. ask its administrator"


def test_comments_of_scripts_and_styles_are_measured() -> None:
    source = (
        "/* Two lines\n * of one. */\nlet x = 1; // not on a line of its own\n// Its own line.\n"
    )
    assert " ".join(prose["block_comments"](source).split()) == "Two lines of one. Its own line."

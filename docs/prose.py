"""Measure how the project's text reads: ``python docs/prose.py``, part of ``make lint``.

The rules are plain English: short sentences, one idea each, the same word for the same thing. A
path is one page, or one folder of code: its docstrings and comments, or ``FOLDER:literals``, what
it says to users. Each path is compared with ``BOUNDS`` and ``BANNED``. Paths that are not converted
yet stand in ``docs/prose-exceptions.txt`` with their figures of that time, and may only get better.

    python docs/prose.py                       check every path. Exit code 1 lists the problems
    python docs/prose.py --worst 20 PATH...    figures, and the sentences to begin with
    python docs/prose.py --update              lower the exceptions to what is needed now

``--update`` never adds a path and never raises a figure. Where unconverted text moves to another
path, its line moves by hand. Generated SQL is not measured, nor the literals of tests.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import statistics
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
EXCEPTIONS = Path("docs/prose-exceptions.txt")
PAGES = (
    "*.md",
    "docs/**/*.md",
    "chart/*.md",
    "migrations/*.md",
    "localcluster/*.md",
    "fluxion/*.md",
    "devtools/*.md",
    ".github/**/*.md",
)
COMMENTED = ("Makefile", "Dockerfile", "docker-compose.yml", "pyproject.toml", "chart/values.yaml",
             "localcluster/Dockerfile", "localcluster/pyproject.toml",
             "fluxion/pyproject.toml", "devtools/pyproject.toml")  # fmt: skip
CODE = (
    ".ci",
    "fluxqueue",
    "webhook",
    "migrations",
    "localcluster/src",
    "fluxion/src",
    "devtools/src",
    "benchmarks",
    "chart",
    "docs",
    "tests",
    "localcluster/tests",
)
LITERALS = ("fluxqueue", "webhook", "fluxion/src", "devtools/src")
"""Code with messages, reasons and help in its strings. Those of localcluster are Kubernetes'."""

FEW = 10
"""A path with fewer sentences has no meaningful mean or percentile."""
SLACK = {"mean": 0.5, "p90": 1.0}
"""By how much an exception's figure may rise, because a good sentence was removed."""

BANNED = {
    r"whoever|whomever": "name it: the user, the process, the job",
    r"somebody|nobody|anybody|everybody": "name it: the user, a process, no job",
    r"he|him|his|himself": "name it; for people: they",
    r"owe[ds]?|owing": "pending action",
    r"let(?:s|ting)? (?:\w+ ){0,3}go": "start, release, ungate",
    r"(?:make|makes|making|made) way": "preempt",
    r"heed(?:s|ed|ing)?": "read, apply, a spec change",
    r"(?:is|are|was|were) to be": "must be, or what was requested",
    r"(?:is|are|was|were|be|been) told": "report, show, emit an event",
    r"(?:what|which|that) is no(?! longer| more)": "is not a",
    r"whilst|lest|hitherto|thereof|wherein|whereupon|naught|aught": "today's English",
    r"strangers?(?:'s?)?": "unmanaged",
    r"houses?": "project, package",
}
"""What no text says, and what it says instead. A command or a name in backticks is exempt."""

_BANNED = re.compile("|".join(rf"\b(?:{words})\b" for words in BANNED), re.IGNORECASE)
_WHO = re.compile(r"\b(?:who|whose|whom)\b", re.IGNORECASE)
_LONG = 30
_DIRECTIVE = re.compile(
    r"^(?:noqa|type:|pragma|fmt:|mypy:|ruff:|!|-\*-|yaml-language-server|hadolint|syntax=)"
)
_MARKUP = (
    (re.compile(r"(?s)\A---\n.*?\n---\n"), ""),
    (re.compile(r"(?s)(`{3,}).*?\1|<!--.*?-->"), ""),
    (re.compile(r"(?m)^\s*(?:\||#|<|\.\. |:|>>>).*$"), ""),
    (re.compile(r"(`+).*?\1"), "X"),
    (re.compile(r"\[([^\]]*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"(?m)^\s*(?:[-*]|\d+\.)\s+|·"), "\n\n"),
)


_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Figures(NamedTuple):
    """How one path reads. The last four are counts."""

    mean: float
    p90: float
    long: float
    semicolons: float
    who: float
    banned: float


SHARES = {"long": 0.06, "semicolons": 0.03, "who": 0.01}
"""How many of a path's sentences may have one. One is always allowed."""
MEAN, P90 = 17.0, 28.0


def bounds(sentences: int) -> Figures:
    """Return the highest figures that a path with so many sentences may have."""
    counts = {name: max(1, int(share * sentences)) for name, share in SHARES.items()}
    few = sentences < FEW
    return Figures(
        mean=float("inf") if few else MEAN, p90=float("inf") if few else P90, banned=0, **counts
    )


def paragraphs(text: str) -> list[str]:
    """Split Markdown or reStructuredText into paragraphs, without markup, code and tables."""
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    parts = (one for one in re.split(r"\n[ \t]*\n", text) if one.strip())
    return [" ".join(one.split()) for one in parts if not _is_example(one)]


def _is_example(paragraph: str) -> bool:
    """Whether every line is indented, as commands and code are."""
    lines = [line for line in paragraph.splitlines() if line.strip()]
    return all(line.startswith("    ") for line in lines)


def sentences(found: Iterable[str]) -> list[str]:
    """Split paragraphs into sentences of at least four words."""
    split = (re.split(r"(?<=[.!?])\s+(?=[A-Z*`])", paragraph) for paragraph in found)
    return [one for parts in split for one in parts if len(one.split()) >= 4]


def python_text(source: str) -> str:
    """Return the docstrings and comments of a module, each as a paragraph of its own."""
    docstrings = [ast.get_docstring(node) or "" for node in _documented(ast.parse(source))]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [(t.start, t.string) for t in tokens if t.type == tokenize.COMMENT]
    return "\n\n".join(
        [*docstrings, *_blocks((row, column, text) for (row, column), text in comments)]
    )


def _documented(node: ast.AST) -> Iterator[_Documented]:
    """Find the nodes that may have a docstring, without a walk through expressions."""
    if isinstance(node, _Documented):
        yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, ast.ExceptHandler)):
            yield from _documented(child)


_WORD = re.compile(r"[(\"'`]*[A-Za-z][A-Za-z'-]*[)\"'`.,:;?!]*")
_STATEMENT = re.compile(r"\b(?:SELECT|FROM|WHERE|INSERT|UPDATE|DELETE|VALUES|CREATE|COMMENT)\b")


def literal_text(source: str) -> str:
    """Return the strings of a module that read as text, each as a paragraph of its own.

    What is put into a string is an X. Messages part what is and what helps by a semicolon, so these
    count as ends of sentences.
    """
    module = ast.parse(source)
    first = [node.body[0] for node in _documented(module) if node.body]
    docstrings = {id(one.value) for one in first if isinstance(one, ast.Expr)}
    found = (" ".join(one.split()) for one in _literals(module, docstrings))
    return "\n\n".join(one.replace(";", ".") for one in found if _reads_as_text(one))


def _literals(node: ast.AST, left_out: set[int]) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(v.value) if isinstance(v, ast.Constant) else "X" for v in node.values)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str) and id(node) not in left_out:
            yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _literals(child, left_out)


def _reads_as_text(literal: str) -> bool:
    words = literal.split()
    plain = sum(bool(_WORD.fullmatch(word)) for word in words)
    return len(words) >= 4 and plain >= 0.75 * len(words) and not _STATEMENT.search(literal)


def block_comments(source: str) -> str:
    """Return the comments of JavaScript or CSS, each as a paragraph of its own."""
    found = re.findall(r"(?s)/\*+(.*?)\*+/", source)
    whole = "\n\n".join(re.sub(r"(?m)^\s*\*", "", one) for one in found)
    return whole + "\n\n" + commented_text(source, "//")


def commented_text(source: str, mark: str) -> str:
    """Return the comments that stand on lines of their own, for SQL, YAML, TOML and the like."""
    lines = enumerate(source.splitlines())
    own = ((n, len(line) - len(line.lstrip()), line.strip()) for n, line in lines)
    return "\n\n".join(_blocks(one for one in own if one[2].startswith(mark)))


def _blocks(comments: Iterable[tuple[int, int, str]]) -> Iterator[str]:
    """Join comments on lines that follow one another at the same indentation."""
    block: list[str] = []
    last = (-1, -1)
    for row, column, text in comments:
        words = re.sub(r"^(?:#+|--+|//+)\s*", "", text)
        if (row - 1, column) != last and block:
            yield "\n".join(block)
            block = []
        last = (row, column)
        if not _DIRECTIVE.match(words):
            block.append(words)
    yield "\n".join(block)


def figures_of(found: list[str]) -> Figures:
    """Measure paragraphs."""
    lengths = sorted(len(one.split()) for one in sentences(found)) or [0]
    whole = "\n".join(found)
    return Figures(
        mean=round(statistics.mean(lengths), 1),
        p90=lengths[int(0.9 * len(lengths))],
        long=sum(length > _LONG for length in lengths),
        semicolons=whole.count(";"),
        who=len(_WHO.findall(whole)),
        banned=len(_BANNED.findall(whole)),
    )


def tree(root: Path) -> dict[str, list[str]]:
    """Return the paragraphs of every path below ``root``: pages by file, code by folder."""
    found: dict[str, list[str]] = {}
    for pattern in PAGES:
        for page in sorted(root.glob(pattern)):
            found[str(page.relative_to(root))] = paragraphs(page.read_text(encoding="utf-8"))
    for name in COMMENTED:
        if (root / name).is_file():
            text = (root / name).read_text(encoding="utf-8")
            found[name] = paragraphs(commented_text(text, "#"))
    for folder in CODE:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix not in {".py", ".sql", ".js", ".css"} or "vendor" in file.parts:
                continue
            source = file.read_text(encoding="utf-8")
            path = str(file.parent.relative_to(root))
            if file.suffix == ".py":
                text = python_text(source)
                if folder in LITERALS:
                    said = paragraphs(literal_text(source))
                    found.setdefault(f"{path}:literals", []).extend(said)
            elif file.suffix != ".sql":
                text = block_comments(source)
            elif folder != "migrations":
                text = commented_text(source, "--")
            else:
                continue
            found.setdefault(path, []).extend(paragraphs(text))
    return found


def read_exceptions(text: str) -> list[tuple[str, Figures]]:
    """Parse the list: six figures and a path a line."""
    lines = (line.split() for line in text.splitlines() if line.strip() and line[0] != "#")
    return [(line[-1], Figures(*map(float, line[:-1]))) for line in lines]


def exception_line(path: str, one: Figures) -> str:
    """Write one line of the list."""
    return f"{one.mean:5.1f}" + "".join(f"{n:5.0f}" for n in one[1:]) + f"  {path}"


def _over(present: Figures, allowed: Figures, slack: Mapping[str, float]) -> list[str]:
    """Name the figures that are over what is allowed."""
    compared = zip(Figures._fields, present, allowed, strict=True)
    return [
        f"{name} {figure:g} (at most {most:g})"
        for name, figure, most in compared
        if figure > most + slack.get(name, 0)
    ]


def problems(found: Mapping[str, list[str]], exceptions: list[tuple[str, Figures]]) -> list[str]:
    """Compare every path with its bounds, and the list with what still needs it."""
    listed = dict(exceptions)
    paths = [path for path, _ in exceptions]
    bad = [f"{path}: listed twice" for path in sorted({p for p in paths if paths.count(p) > 1})]
    bad += [f"{path}: listed, and not there" for path in sorted(listed.keys() - found.keys())]
    for path, text in found.items():
        present = figures_of(text)
        over = _over(present, bounds(len(sentences(text))), {})
        if path in listed and not over:
            bad.append(f"{path}: needs no exception any more")
        elif path in listed:
            bad += [f"{path}: {one}" for one in _over(present, listed[path], SLACK)]
        else:
            bad += [f"{path}: {one}" for one in over]
    return bad


def updated(
    found: Mapping[str, list[str]], exceptions: list[tuple[str, Figures]]
) -> list[tuple[str, Figures]]:
    """Lower each exception to its present figures, and drop those that nothing needs."""
    kept: dict[str, Figures] = {}
    for path, figures in exceptions:
        if path not in found:
            continue
        present = figures_of(found[path])
        if _over(present, bounds(len(sentences(found[path]))), {}):
            allowed = kept.get(path, figures)
            kept[path] = Figures(*map(min, allowed, present))
    return sorted(kept.items())


def worst(text: list[str], number: int) -> list[str]:
    """Return the sentences to begin with."""

    def weight(one: str) -> int:
        hits = one.count(";") + len(_WHO.findall(one)) + len(_BANNED.findall(one))
        return len(one.split()) + 12 * hits

    return sorted(sentences(text), key=weight, reverse=True)[:number]


def instead(text: list[str]) -> list[str]:
    """Return each banned word of a text once, with what to say."""
    said = {word.lower() for one in text for word in _BANNED.findall(one)}
    return [
        f"{word!r}: {hint}"
        for words, hint in BANNED.items()
        for word in sorted(said)
        if re.fullmatch(words, word, re.IGNORECASE)
    ]


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="How the project's text reads.")
    parser.add_argument("paths", nargs="*", help="only these paths, as the list names them")
    parser.add_argument("--worst", type=int, metavar="N", help="show the N worst sentences")
    parser.add_argument("--update", action="store_true", help="lower the exceptions")
    asked = parser.parse_args(arguments)
    found = tree(root)
    if unknown := [path for path in asked.paths if path not in found]:
        parser.error(f"not a page or a folder of code: {', '.join(unknown)}")
    if asked.worst is not None:
        for path in asked.paths or found:
            _show(path, found[path], asked.worst)
        return 0
    file = root / EXCEPTIONS
    text = file.read_text(encoding="utf-8")
    exceptions = read_exceptions(text)
    if asked.update:
        head = [line for line in text.splitlines() if line.startswith("#")]
        lines = [exception_line(*one) for one in updated(found, exceptions)]
        file.write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
        return 0
    bad = problems(found, exceptions)
    if asked.paths:
        bad = [one for one in bad if one.partition(": ")[0] in asked.paths]
    for one in bad:
        print(one)
    if bad:
        print("See the sentences: python docs/prose.py --worst 20 PATH.")
        print("After an improvement: python docs/prose.py --update.")
    return 1 if bad else 0


def _show(path: str, text: list[str], number: int) -> None:
    print(exception_line(path, figures_of(text)))
    print(f"    {len(sentences(text))} sentences")
    for one in worst(text, number):
        print(f"    {one}")
    for one in instead(text):
        print(f"    {one}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The code map names files and functions that exist, and a newcomer reaches it from README."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAP = ROOT / "docs" / "developer" / "code-map.md"
LEAST_ROWS = 30
_CODE = re.compile(r"`([^`]+)`")
_SQL = re.compile(r"^CREATE (?:FUNCTION|VIEW|TRIGGER) (\w+)", re.MULTILINE)
_NAMED = re.compile(
    r"`((?:fluxqueue|webhook|chart|migrations|tests|localcluster|[a-z_]+)/[\w./-]*\w\.(?:py|sql|yaml|md))[:`]"
)

ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split(" | "))
    for line in MAP.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| Question ")
]
PAGES = [ROOT / "docs" / "architecture.md", *sorted((ROOT / "docs" / "developer").glob("*.md"))]


def python_names(source: str) -> set[str]:
    """Return functions, classes and variables of a module, and methods as ``Class.method``."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        names |= set(_names_of(node))
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{name}" for member in node.body for name in _names_of(member)}
    return names


def _names_of(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def is_defined(path: Path, name: str) -> bool:
    """Say whether ``name`` is defined in a file. Other formats must have it as a word."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return name in python_names(text)
    if path.suffix == ".sql":
        return name in _SQL.findall(text)
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row[0]))
def test_each_answer_exists(row: tuple[str, ...]) -> None:
    """The file is there, and defines each name."""
    assert len(row) == 3, "Question | File | Function"
    question, file, functions = row
    assert question.endswith("?")
    paths, names = _CODE.findall(file), _CODE.findall(functions)
    assert len(paths) == 1
    assert names
    path = ROOT / paths[0]
    assert path.is_file(), paths[0]
    assert [name for name in names if not is_defined(path, name)] == []


def test_there_are_enough_different_questions() -> None:
    """Thirty at least, and none twice."""
    questions = [row[0] for row in ROWS]
    assert len(questions) >= LEAST_ROWS
    assert len(questions) == len(set(questions))


def test_names_are_found_by_what_defines_them() -> None:
    """A use, a comment or a local name is no definition."""
    source = "import os\nLIMIT: int = 3\nclass A:\n    async def b(self): c = d()\n# e\n"
    assert python_names(source) == {"LIMIT", "A", "A.b"}


def test_the_map_is_three_hops_from_readme() -> None:
    """README leads to the architecture, which leads to the map, which leads to the code."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    architecture = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert "](docs/architecture.md)" in readme
    assert "](developer/code-map.md)" in architecture


def test_the_architecture_fits_on_three_screens() -> None:
    """At most 140 lines of 120 characters."""
    lines = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 140
    assert [line for line in lines if len(line) > 120] == []


PACKAGES = [
    ROOT / one for one in ("fluxqueue", "fluxion/src/fluxion", "devtools/src/fluxqueue_devtools")
]
BASES = [ROOT, *PACKAGES, *(folder for package in PACKAGES for folder in package.iterdir())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_pages_name_exist(page: Path) -> None:
    """Paths are given from the root, or from one of the packages."""
    missing = {
        named
        for named in _NAMED.findall(page.read_text(encoding="utf-8"))
        if not any((base / named).exists() for base in BASES)
    }
    assert missing == set()


SYMBOLS = [
    (page, *found)
    for page in sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
    for found in re.findall(r"`([\w/]+\.py):([A-Za-z_][\w.]*)`", page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(
    ("page", "file", "symbol"), SYMBOLS, ids=[f"{one[0].name}-{one[2]}" for one in SYMBOLS]
)
def test_what_pages_name_in_a_file_is_there(page: Path, file: str, symbol: str) -> None:
    """``file.py:name``, on every page. A renamed function is renamed there, too."""
    (path,) = (base / file for base in BASES if (base / file).exists())
    assert symbol in python_names(path.read_text(encoding="utf-8"))


def test_the_table_of_patches_is_whole() -> None:
    """The table of actions has each function that makes a patch, or what is wanted."""
    page = (ROOT / "docs" / "developer" / "starting-a-workload.md").read_text(encoding="utf-8")
    table = page.partition("| Action | Pod |")[2].partition("\n\n")[0]
    wanted = r"gated_\w+|suspended_\w+|placed_\w+|repinned|\w+_patch"
    makes = re.compile(rf"^def ({wanted})\(", re.MULTILINE)
    made: set[str] = set()
    for name in ("gates.py", "release_patches.py", "suspension.py"):
        made |= set(makes.findall((ROOT / "fluxqueue" / "workload" / name).read_text()))
    assert set(re.findall(r"`(\w+)`", table)) == made

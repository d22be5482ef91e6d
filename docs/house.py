"""Measure the size of the project and hold its record: ``make house``.

    python docs/house.py              print each figure and its record (exit code 1: one is worse)
    python docs/house.py --update     lower the record to the present figures
    python docs/house.py --list NAME  show what a figure counts

The record is ``docs/house.json``. A figure may only fall. Where it must rise, an entry of ``rises``
says by how much, for which issue and why, and the record is raised by hand in the same change.
Only the standard library is needed.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import statistics
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = Path("docs/house.json")

PRODUCT = ("fluxqueue", "webhook")
PACKAGES = ("fluxion/src", "devtools/src")
"""What was split off the product. The bounds on modules, functions and names hold there, too."""
OURS = (*PRODUCT, *PACKAGES)
MODULE_MAX, FUNCTION_MAX, PARAMETERS_MAX = 600, 70, 8
FACTS = (
    "is_sweep", "provision", "waits_gated", "restarts_on_loss", "is_gathered",
    "author_hold", "is_pinnable", "depends_on", "replaces_pods", "begin_at",
)  # fmt: skip
"""Ten facts of a workload. A new one must need few edits."""
_SQL = re.compile(r"\s*(?:WITH|SELECT|INSERT INTO|UPDATE|DELETE FROM)\s")
_UPDATE = re.compile(r"\bUPDATE\s+fluxjobs\b", re.IGNORECASE)
QUERIES = "fluxqueue/db/queries"
"""The one folder of SQL statements."""
_FRAMEWORK = re.compile(r"^(?:__\w+__|test_\w+|visit_\w+|do_[A-Z]+|fetch_job)$")

Found = list[str]


@cache
def modules(*folders: str) -> tuple[Path, ...]:
    """Return the Python files below folders of the project."""
    return tuple(file for folder in folders for file in sorted((ROOT / folder).rglob("*.py")))


@cache
def text_of(file: Path) -> str:
    """Return the text of a file."""
    return file.read_text(encoding="utf-8")


@cache
def tree_of(file: Path) -> ast.Module:
    """Return a parsed module."""
    return ast.parse(text_of(file))


def _name(file: Path) -> str:
    return str(file.relative_to(ROOT))


def _lines(*folders: str) -> Found:
    return [f"{_name(file)}:{n}" for file in modules(*folders) for n in range(_length(file))]


def _length(file: Path) -> int:
    return len(text_of(file).splitlines())


def long_modules() -> Found:
    """Modules of more than 600 lines."""
    return [f"{_name(f)} {_length(f)}" for f in modules(*OURS) if _length(f) > MODULE_MAX]


Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions() -> Iterator[tuple[Path, Function]]:
    for file in modules(*OURS):
        for node in ast.walk(tree_of(file)):
            if isinstance(node, Function):
                yield file, node


def long_functions() -> Found:
    """Functions of more than 70 lines."""
    sizes = [(file, f, (f.end_lineno or f.lineno) - f.lineno + 1) for file, f in _functions()]
    return [f"{_name(file)}:{f.name} {n}" for file, f, n in sizes if n > FUNCTION_MAX]


def wide_functions() -> Found:
    """Functions of more than eight parameters, beside ``self`` and ``cls``."""
    found = []
    for file, f in _functions():
        named = [*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs]
        number = len([one for one in named if one.arg not in {"self", "cls"}])
        if number > PARAMETERS_MAX:
            found.append(f"{_name(file)}:{f.name} {number}")
    return found


def files_of_fact(fact: str) -> Found:
    """Product files that name a fact of a workload."""
    named = re.compile(rf"\b{fact}\b")
    files = [*modules(*PRODUCT), *sorted((ROOT / "fluxqueue").rglob("*.sql"))]
    return [_name(file) for file in files if named.search(text_of(file))]


def fact_median() -> Found:
    """The median number of files that name one of ten facts."""
    return [""] * int(statistics.median(len(files_of_fact(fact)) for fact in FACTS))


def row_columns() -> Found:
    """Columns of the table ``fluxjobs``."""
    for node in ast.walk(tree_of(ROOT / "fluxqueue/db/tables.py")):
        if _is_table(node, "fluxjobs"):
            return [ast.unparse(one)[:60] for one in node.args if _is_call(one, "Column")] + [
                ast.unparse(one) for one in node.args if isinstance(one, ast.Starred)
            ]
    return []


def _is_table(node: ast.AST, name: str) -> bool:
    if not _is_call(node, "Table"):
        return False
    first = node.args[0]
    return isinstance(first, ast.Constant) and first.value == name


def _is_call(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith(name)


def _literals(file: Path) -> Iterator[tuple[int, str]]:
    """Find the string literals of a module. An f-string is one, with its literal parts."""
    inner: set[int] = set()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.JoinedStr):
            parts = [one for one in node.values if isinstance(one, ast.Constant)]
            inner.update(id(one) for one in parts)
            yield node.lineno, "".join(str(one.value) for one in parts)
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner
        ):
            yield node.lineno, node.value


def row_writers() -> Found:
    """Modules with an UPDATE of ``fluxjobs``."""
    files = [*modules(*PRODUCT), *sorted((ROOT / "fluxqueue/db").rglob("*.sql"))]
    return [_name(file) for file in files if _UPDATE.search(text_of(file))]


def sql_literals() -> Found:
    """SQL statements in Python literals outside the one folder of queries."""
    return [
        f"{_name(file)}:{line}"
        for file in modules(*PRODUCT)
        if not _name(file).startswith(QUERIES)
        for line, text in _literals(file)
        if _SQL.match(text) and len(text.split()) > 3
    ]


def untyped_rows() -> Found:
    """Accesses such as ``row["name"]``."""
    return [
        f"{_name(file)}:{node.lineno}"
        for file in modules(*PRODUCT)
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
        if isinstance(node.slice.value, str) and ast.unparse(node.value) == "row"
    ]


def top_level_files() -> Found:
    """Modules directly below ``fluxqueue/``."""
    return [_name(file) for file in modules("fluxqueue") if file.parent == ROOT / "fluxqueue"]


def rooms() -> Found:
    """Packages directly below ``fluxqueue/``, its top-level modules, and the webhook."""
    packages = {
        _name(f.parent) for f in modules("fluxqueue") if f.parent.parent == ROOT / "fluxqueue"
    }
    return sorted({*packages, *top_level_files(), "webhook"} - {"fluxqueue/__init__.py"})


def repeated_file_names() -> Found:
    """File names that occur in more than one folder."""
    by_name = defaultdict(list)
    for file in modules(*OURS):
        if not file.name.startswith("__"):
            by_name[file.name].append(_name(file))
    return [f"{name}: {', '.join(files)}" for name, files in by_name.items() if len(files) > 1]


@cache
def _words(*folders: str) -> Counter[str]:
    """Return how often each name occurs in Python files. Strings count, comments do not."""
    found: Counter[str] = Counter()
    for file in modules(*folders):
        with file.open("rb") as source:
            for token in tokenize.tokenize(source.readline):
                if token.type in {tokenize.NAME, tokenize.STRING, _FSTRING}:
                    found.update(re.findall(r"\w+", token.string))
    return found


_FSTRING = getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)


def test_only_names() -> Found:
    """Functions and classes that only tests name, and constants that nothing names."""
    outside = _words("benchmarks", "docs", "migrations", ".ci", "chart", "localcluster/src")
    for page in sorted((ROOT / "docs/user").glob("*.md")):
        outside.update(re.findall(r"`(\w+)\(", text_of(page)))
    product, tests = _words(*OURS), _words("tests")
    return [
        f"{_name(file)}:{node.name}"
        for file in modules(*OURS)
        for node in ast.walk(tree_of(file))
        if isinstance(node, Function | ast.ClassDef)
        if not node.decorator_list and not _FRAMEWORK.match(node.name)
        if product[node.name] == 1 and tests[node.name] and not outside[node.name]
    ] + [
        f"{_name(file)}:{target.id}"
        for file in modules(*OURS)
        for node in tree_of(file).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and not target.id.startswith("__")
        if len(re.findall(rf"\b{target.id}\b", text_of(file))) == 1
        if target.id.startswith("_")
        or not (product[target.id] > 1 or tests[target.id] or outside[target.id])
    ]


def webhook_lines() -> Found:
    """Lines of the product that the webhook imports, counted without running it."""
    seen: set[Path] = set()
    todo = [file for file in modules("webhook") if "fluxqueue_webhook" in file.parts]
    while todo:
        file = todo.pop()
        if file not in seen:
            seen.add(file)
            todo += _imported_by(file)
    return [f"{_name(file)}:{n}" for file in sorted(seen) for n in range(_length(file))]


def _imported_by(file: Path) -> Iterator[Path]:
    """Find the modules of the product that a module imports at its top level."""
    names: list[str] = []
    for node in tree_of(file).body:
        if isinstance(node, ast.Import):
            names += [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
    for name in names:
        parts = name.split(".")
        base = ROOT / ("webhook" if parts[0] == "fluxqueue_webhook" else "")
        for end in range(1, len(parts) + 1):
            at = base.joinpath(*parts[:end])
            yield from (one for one in (at.with_suffix(".py"), at / "__init__.py") if one.is_file())


def admission_calls() -> Found:
    """Calls from the webhook's package into other packages, as written."""
    found = []
    for file in modules("webhook"):
        foreign = {
            one.asname or one.name
            for node in ast.walk(tree_of(file))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fluxqueue.")
            for one in node.names
        }
        found += [
            f"{_name(file)}:{node.lineno} {ast.unparse(node.func)}"
            for node in ast.walk(tree_of(file))
            if isinstance(node, ast.Call)
            if ast.unparse(node.func).partition(".")[0].partition("(")[0] in foreign
        ]
    return found


def prose_exceptions() -> Found:
    """Paths that ``docs/prose.py`` still excepts from its bounds."""
    lines = (ROOT / "docs" / "prose-exceptions.txt").read_text(encoding="utf-8").splitlines()
    return [line.split()[-1] for line in lines if not line.startswith("#")]


FIGURES: dict[str, Callable[[], Found]] = {
    "product, lines": lambda: _lines(*PRODUCT),
    "fluxion and devtools, lines": lambda: _lines(*PACKAGES),
    "localcluster, lines": lambda: _lines("localcluster/src"),
    "tests of the product, lines": lambda: _lines("tests"),
    "modules over 600 lines": long_modules,
    "functions over 70 lines": long_functions,
    "functions with over 8 parameters": wide_functions,
    "files that name is_sweep": lambda: files_of_fact("is_sweep"),
    "files that name a fact, median of ten": fact_median,
    "columns of fluxjobs": row_columns,
    "modules that update fluxjobs": row_writers,
    "SQL literals outside the one place": sql_literals,
    'uses of row["..."]': untyped_rows,
    "lines that the webhook loads": webhook_lines,
    "calls of admission into other packages": admission_calls,
    "top-level files of fluxqueue/": top_level_files,
    "rooms": rooms,
    "paths whose prose is out of bounds": prose_exceptions,
    "names that only tests call": test_only_names,
    "file names used twice": repeated_file_names,
}


def measure() -> dict[str, int]:
    """Return each figure by name."""
    return {name: len(found()) for name, found in FIGURES.items()}


def worse(present: dict[str, int], record: dict[str, int]) -> list[str]:
    """Return the figures that are above their record, and those without one."""
    return [
        f"{name}: {number} is above the record {record.get(name, 'none')}"
        for name, number in present.items()
        if number > record.get(name, -1)
    ]


def table(present: dict[str, int], record: dict[str, int]) -> Iterable[str]:
    """Return the figures as lines of text."""
    yield f"{'':42}{'now':>9}{'record':>9}"
    for name, number in present.items():
        yield f"{name:42}{number:9,}{record.get(name, 0):9,}"


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="The size of the project, and its record.")
    parser.add_argument("--update", action="store_true", help="lower the record")
    parser.add_argument("--list", choices=list(FIGURES), metavar="NAME", help="what it counts")
    asked = parser.parse_args(arguments)
    if asked.list:
        print("\n".join(FIGURES[asked.list]()))
        return 0
    stored = json.loads((root / RECORD).read_text(encoding="utf-8"))
    record, present = stored["record"], measure()
    print("\n".join(table(present, record)))
    found = worse(present, record)
    if asked.update and not found:
        stored["record"] = present
        (root / RECORD).write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")
    for one in found:
        print(one)
    if found:
        print("See what counts: python docs/house.py --list NAME.")
        print(f"A rise needs an entry with its reason in {RECORD}.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

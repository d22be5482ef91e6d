"""Names in the sources lead somewhere: what a docstring sends a reader to is there."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import localcluster

ROOT = Path(localcluster.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES}
FOLDERS = {path.parent.name for path in FILES if path.parent != ROOT}
REFERENCE = re.compile(r"``([a-z_]+)\.([a-z_]+)(?:\.\w+)*(?:\(\))?``")
FORMER = ("resources", "api")
"""Folders of before."""


def docstrings() -> Iterator[tuple[str, str]]:
    """Of modules, classes and functions, with the file."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                yield str(path.relative_to(ROOT)), text


def test_modules_that_docstrings_name_exist() -> None:
    lost = [
        (file, match[0])
        for file, text in docstrings()
        for match in REFERENCE.finditer(text)
        if match[1] in FORMER
        or (match[1] in FOLDERS and f"{match[1]}.{match[2]}" not in MODULES and match[2] != "spec")
    ]
    assert not lost


def test_no_module_name_occurs_twice() -> None:
    names = Counter(path.stem for path in FILES if path.stem != "__init__")
    assert [name for name, times in names.items() if times > 1] == []


def test_an_alias_is_defined_once() -> None:
    """``Obj`` stood in 43 files."""
    defined: Counter[str] = Counter()
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            is_alias = isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript)
            if is_alias and isinstance(node.targets[0], ast.Name):
                defined[f"{node.targets[0].id} = {ast.unparse(node.value)}"] += 1
    assert [alias for alias, times in defined.items() if times > 1] == []

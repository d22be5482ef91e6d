"""Write the pages of docs/reference from the code: ``python docs/reference_pages.py``.

Definitions from ``chart/crds``, commands from the command line's own tree, labels and annotations
from ``workload.labels``, values from the chart's schema, the rules of admission from the webhook.
The table of metrics has a program of its own (``metrics_table.py``) within a page that is written
by hand. A test compares.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer
import yaml

from fluxqueue.cli.main import app
from fluxqueue.client.batch.dialects import DIALECTS
from fluxqueue.client.batch.directives import Directive, Fate
from fluxqueue.workload import labels
from fluxqueue_webhook.admit import REVIEWS

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
NOTE = "<!-- written by docs/reference_pages.py -->\n"

Schema = Mapping[str, Any]


def pages() -> dict[Path, str]:
    """Every page by its path."""
    found = {FOLDER / f"{name}.md": _definition(name) for name in _DEFINITIONS}
    found[FOLDER / "admission.md"] = _admission()
    found[FOLDER / "commands.md"] = _commands()
    found[FOLDER / "directives.md"] = _directives()
    found[FOLDER / "labels.md"] = _labels()
    found[FOLDER / "values.md"] = _values()
    return {path: f"{NOTE}\n{text.rstrip()}\n" for path, text in found.items()}


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# --- definitions ---------------------------------------------------------------------------------

_DEFINITIONS = ("fluxjob", "fluxnodepool", "fluxqueue", "placementreview", "resourcesharingpolicy")
_IDENTITY = """\
`apiVersion: {version}`, `kind: {kind}`, {scope}, short name {short}. `kubectl explain {word}` says the same.
"""  # noqa: E501 a line of Markdown


def _plural(name: str) -> str:
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"


def _definition(name: str) -> str:
    text = (ROOT / "chart" / "crds" / f"{_plural(name)}.yaml").read_text(encoding="utf-8")
    spec = yaml.safe_load(text)["spec"]
    (version,) = spec["versions"]
    schema, names = version["schema"]["openAPIV3Schema"], spec["names"]
    short = ", ".join(f"`{one}`" for one in names.get("shortNames", ()))
    lines = [
        f"# {names['kind']}\n",
        _IDENTITY.format(
            version=f"{spec['group']}/{version['name']}",
            kind=names["kind"],
            scope=spec["scope"].lower(),
            short=short or "none",
            word=names["singular"],
        ),
        f"{_cell(schema['description'])}\n",
    ]
    if fields := version.get("selectableFields"):
        paths = ", ".join(f"`{one['jsonPath'].removeprefix('.')}`" for one in fields)
        lines.append(f"Field selectors (Kubernetes 1.31 or newer): {paths}.\n")
    for part in ("spec", "status"):
        inside = schema["properties"].get(part)
        if inside is None:
            continue
        lines += [f"## {part}\n", f"{_cell(inside['description'])}\n", "| Field | Type | |"]
        lines += ["|---|---|---|", *_fields(inside, part), ""]
    return "\n".join(lines)


def _fields(schema: Schema, where: str) -> Iterator[str]:
    required = set(schema.get("required", ()))
    for name, one in schema.get("properties", {}).items():
        path = f"{where}.{name}"
        must = ", required" if name in required else ""
        words = _cell(one.get("description", ""))
        if one.get("enum"):
            words += f" One of {', '.join(f'`{value}`' for value in one['enum'])}."
        yield f"| `{path}` | {_type(one)}{must} | {words} |"
        inner, at = (one["items"], f"{path}[]") if one.get("type") == "array" else (one, path)
        yield from _fields(inner, at)


def _type(schema: Schema) -> str:
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    return str(schema.get("format") or schema.get("type") or "any")


# --- commands ------------------------------------------------------------------------------------


_COMMANDS = """\
# Commands

`fluxqueue VERB` and `kubectl fluxqueue VERB` are one program. [The command line](../user/cli.md)
says what to do with it. `--help` shows the same.
"""


def _commands() -> str:
    command = typer.main.get_command(app)
    lines = [_COMMANDS]
    for path, one in _tree(command, ("fluxqueue",)):
        lines += _command(" ".join(path), one)
    return "\n".join(lines)


def _tree(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, one in getattr(command, "commands", {}).items():
        if one.hidden:
            continue
        if getattr(one, "commands", None):
            yield from _tree(one, (*path, name))
        else:
            yield (*path, name), one


def _command(name: str, command: Any) -> list[str]:
    shown = [one for one in command.params if not getattr(one, "hidden", False)]
    given = [f"[{one.name.upper()}]" for one in shown if one.param_type_name == "argument"]
    words, _, examples = (command.help or "").partition("Examples:")
    lines = [f"## {name}\n", f"{_cell(words)}\n"]
    if said := [line.strip() for line in examples.splitlines() if line.strip()]:
        lines += ["```text", *said, "```\n"]
    lines += [f"`{' '.join([name, *given])}`\n"] if given else []
    rows = [
        f"| {', '.join(f'`{opt}`' for opt in (*one.opts, *one.secondary_opts))} | {_default(one)} |"
        f" {_cell(getattr(one, 'help', None) or '')} |"
        for one in shown
        if one.name != "help" and one.param_type_name == "option"
    ]
    return [*lines, "| Option | Default | |", "|---|---|---|", *rows, ""] if rows else lines


def _default(option: Any) -> str:
    value = option.default
    if value in (None, "", False, ()) or callable(value):
        return "–"
    # A path of this machine says nothing to others.
    return "–" if str(Path.home()) in str(value) or str(ROOT) in str(value) else f"`{value}`"


# --- admission ---------------------------------------------------------------------------------


_ADMISSION = """\
# Rules of admission

The webhook asks these rules in their order. A rule that applies ends the review, or changes the
object for the rules after it. A value that is not valid refuses the object, with the field, the
value and the way out. Which requests the webhook sees is in [security](../admin/security.md), what
waiting means for each kind in [starts](../developer/starting-a-workload.md).
"""


def _admission() -> str:
    """Return the name of each rule and the first line of its docstring, by kind of review."""
    parts = [_ADMISSION]
    for review, rules in REVIEWS.items():
        parts += [f"## Review of {review}\n", "| Rule | |", "|---|---|"]
        words = [_cell((rule.__doc__ or "").partition("\n")[0]) for rule in rules]
        names = [rule.__name__.replace("_", " ") for rule in rules]
        parts += [f"| {name} | {text} |" for name, text in zip(names, words, strict=True)]
        parts.append("")
    return "\n".join(parts)


# --- labels and annotations ----------------------------------------------------------------------


_LABELS = """\
# Labels and annotations

What users write chooses, what we write informs: nothing is decided from it. What a Job may say is
explained in [run a Job](../user/run.md#fields-and-annotations-of-a-job), groups in
[groups](../user/groups.md).
"""


def _labels() -> str:
    """Return the labels with a description of their own, in the order of the module."""
    body = ast.parse(Path(labels.__file__).read_text(encoding="utf-8")).body
    rows = []
    for one, after in pairwise(body):
        if not isinstance(one, ast.Assign) or not isinstance(after, ast.Expr):
            continue
        value = one.value.elts[0] if isinstance(one.value, ast.Tuple) else one.value
        name, words = (
            ast.literal_eval(value) if isinstance(value, ast.Constant) else "",
            after.value,
        )
        if str(name).startswith(labels.PREFIX) and isinstance(words, ast.Constant):
            rows.append(f"| `{name}` | {_cell(re.sub('``', '`', str(words.value)))} |")
    return "\n".join([_LABELS, "| Name | |", "|---|---|", *rows])


# --- directives of batch scripts -----------------------------------------------------------------


_DIRECTIVES = """\
# Directives of batch scripts

`fluxqueue submit` reads these lines of a script. [From Slurm](../user/slurm.md) explains them with
examples. A long name can be shortened as long as it is unique.
"""
_DIALECT_TITLES = {"slurm": "`#SBATCH`", "flux": "`#FLUX:`", "pbs": "`#PBS`", "lsf": "`#BSUB`"}
_FATE_TITLES = {
    Fate.TRANSLATED: ("translated", "Becomes"),
    Fate.IGNORED: ("ignored, and named", "Reason"),
    Fate.REFUSED: ("refused", "Way out"),
}


def _directives() -> str:
    lines = [_DIRECTIVES]
    for dialect, table in DIALECTS.items():
        for fate, (title, column) in _FATE_TITLES.items():
            lines += [f"## {_DIALECT_TITLES[dialect]}: {title}\n"]
            lines += [f"| Directive | {column} |", "|---|---|"]
            lines += [
                f"| {_directive(one)} | {_cell(one.text)} |" for one in table if one.fate is fate
            ]
            lines.append("")
    return "\n".join(lines)


def _directive(one: Directive) -> str:
    if one.short and one.short != one.name:
        return f"`-{one.short}`, `{one.spelled}`"
    return f"`{one.spelled}`"


# --- values of the chart -------------------------------------------------------------------------


_VALUES = """\
# Values of the chart

[Install](../admin/install.md) says which ones need a decision. The keys of `settings` are in
[settings](settings.md).
"""


def _values() -> str:
    chart = ROOT / "chart"
    schema = json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
    rows = _value_rows(schema, values, "")
    return "\n".join([_VALUES, "| Value | Default | |", "|---|---|---|", *rows])


def _value_rows(schema: Schema, values: Any, where: str) -> Iterator[str]:
    for name, one in schema.get("properties", {}).items():
        if not isinstance(values, dict) or name not in values:
            continue
        path, value = f"{where}{name}", values[name]
        if isinstance(value, dict) and value and one.get("properties"):
            yield from _value_rows(one, value, f"{path}.")
            continue
        yield f"| `{path}` | `{_cell(json.dumps(value))}` | {_cell(one.get('description', ''))} |"


if __name__ == "__main__":
    for page, words in pages().items():
        page.write_text(words, encoding="utf-8")

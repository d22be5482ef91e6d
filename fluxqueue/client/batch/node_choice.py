"""Which nodes a script allows: ``--constraint``, ``--nodelist``, ``--requires``, as expressions.

``script_request`` calls it. Pure. The result is a list of alternatives. Each is a list of
expressions that must all hold, as in a required node affinity.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from fluxqueue.client.batch.site_names import VARIABLE, SiteNames
from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.hostlist import expand

HOSTNAME = "kubernetes.io/hostname"
ALTERNATIVES_MAX = 64


@dataclass(frozen=True, slots=True, order=True)
class NodeExpression:
    """A requirement on a node label: ``operator`` is In or NotIn."""

    key: str
    operator: str
    values: tuple[str, ...]


Alternatives = tuple[tuple[NodeExpression, ...], ...]
ANYWHERE: Alternatives = ((),)


def both(first: Alternatives, second: Alternatives, where: str) -> Alternatives:
    """Return the alternatives of nodes that meet both.

    Raises
    ------
    InvalidInput
        There are too many.
    """
    if len(first) * len(second) > ALTERNATIVES_MAX:
        raise InvalidInput(
            f"has more than {ALTERNATIVES_MAX} alternatives", where=where, hint="name fewer"
        )
    return tuple(tuple(dict.fromkeys((*one, *other))) for one, other in product(first, second))


def of_constraint(text: str, site: SiteNames, where: str) -> Alternatives:
    """Read sbatch's ``--constraint``: names with ``&`` (or a comma), or with ``|``.

    Raises
    ------
    InvalidInput
        The site's table lacks a name, or it counts nodes, groups or mixes the two operators.
    """
    said = text.strip().strip("\"'")
    if re.search(r"[\[\]()*]", said):
        raise InvalidInput(
            f"{text!r} groups or counts features",
            where=where,
            value=text,
            hint="use & or | alone, or describe the nodes with the annotation fluxqueue/jobspec",
        )
    if "|" in said and re.search("[&,]", said):
        raise InvalidInput(
            f"{text!r} mixes & and |", where=where, value=text, hint="use one of the two"
        )
    alternatives: list[tuple[NodeExpression, ...]] = []
    for term in said.split("|"):
        parts = [
            _labels(site.constraints, name.strip(), "constraints", site, where)
            for name in re.split("[&,]", term)
        ]
        alternatives.append(tuple(dict.fromkeys(one for part in parts for one in part)))
    return tuple(alternatives)


def of_requires(text: str, site: SiteNames, where: str) -> Alternatives:
    """Read Flux' ``--requires`` (RFC 35): ``host:LIST`` and names, with ``-``, and, or.

    Raises
    ------
    InvalidInput
        The site's table lacks a name, or it needs parentheses or ranks.
    """
    if re.search(r"[()]|\branks?:", text):
        raise InvalidInput(
            f"{text!r} is not supported", where=where, value=text, hint="names and host: only"
        )
    found: Alternatives = ()
    whole: Alternatives = ANYWHERE
    for word in re.split(r"([|&\s])", text.replace("||", "|")):
        if word in {"|", "or"}:
            found, whole = (*found, *whole), ANYWHERE
        elif word.strip() and word not in {"&", "and"}:
            whole = both(whole, _of_word(word, site, where), where)
    if ANYWHERE[0] in (*found, *whole):
        raise InvalidInput(
            f"{text!r} lacks a name",
            where=where,
            value=text,
            hint="name1 and name2, or host:n[1-4]",
        )
    return (*found, *whole)


def of_hosts(text: str, operator: str, where: str) -> tuple[NodeExpression, tuple[str, ...]]:
    """Read a hostlist. Returns the expression, and the names.

    Raises
    ------
    InvalidInput
        It is not a hostlist.
    """
    try:
        names = tuple(dict.fromkeys(expand(text)))
    except InvalidInput as error:
        raise InvalidInput(
            f"{text!r} is not a list of nodes: {error.message}",
            where=where,
            value=text,
            hint="n[1-4],n7",
        ) from None
    if not names or not all(re.fullmatch(r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?", n) for n in names):
        raise InvalidInput(
            f"{text!r} is not a list of nodes", where=where, value=text, hint="n[1-4],n7"
        )
    return NodeExpression(HOSTNAME, operator, names), names


def _of_word(word: str, site: SiteNames, where: str) -> Alternatives:
    is_not = word.startswith(("-", "^"))
    name = word.lstrip("-^")
    kind, colon, rest = name.partition(":")
    if colon and kind in {"host", "hosts", "hostlist"}:
        expression, _ = of_hosts(rest, "NotIn" if is_not else "In", where)
        return ((expression,),)
    positive = _labels(site.constraints, rest if kind == "property" else name, "constraints",
                       site, where)  # fmt: skip
    if not is_not:
        return (positive,)
    return tuple((NodeExpression(one.key, "NotIn", one.values),) for one in positive)


def _labels(
    table: Mapping[str, Mapping[str, str]], name: str, part: str, site: SiteNames, where: str
) -> tuple[NodeExpression, ...]:
    if name not in table:
        raise unknown_name(name, part, tuple(table), site, where)
    return with_labels(table[name])


def with_labels(labels: Mapping[str, str]) -> tuple[NodeExpression, ...]:
    """Return one expression for each label."""
    return tuple(NodeExpression(key, "In", (value,)) for key, value in sorted(labels.items()))


def unknown_name(
    name: str, part: str, known: Sequence[str], site: SiteNames, where: str
) -> InvalidInput:
    """Return the error for a name that the site's table lacks."""
    listed = f" (known: {', '.join(sorted(known))})" if known else ""
    return InvalidInput(
        f"{name!r} has no meaning on this cluster{listed}",
        where=where,
        value=name,
        hint=f"add it under {part!r} to {site.source} (or to the file that {VARIABLE} names),"
        " or leave the line out and set nodeSelector in a Job manifest",
    )

"""``fluxqueue resource-query``: Fluxion's resource-query, on our matcher.

It takes resource-query's arguments, and its command language on standard input. It writes the same
output, so Fluxion's command files replay byte for byte (flux-sched,
resource/utilities/resource-query.cpp, command.cpp). At a terminal it has a prompt, ``help`` and a
history.

The clock is read here, for elapsed times only. The matcher always matches at time 0, as
resource-query does.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import TextIO

from fluxion.formats import jgf
from fluxion.formats.grug import read_grug
from fluxion.formats.jgf import read_jgf
from fluxion.formats.rv1 import read_rv1
from fluxion.formats.writers import FORMATS
from fluxion.matcher import FluxionMatcher
from fluxion.model.pruning import DEFAULT
from fluxion.model.store import ResourceGraph
from fluxion.resource_query_commands import COMMANDS, Session, read_file
from fluxqueue.errors import FluxQueueError, InvalidSettings
from fluxqueue.graph.match.policy import POLICIES
from fluxqueue.jobspec import document


def _read_jgf(data: bytes) -> ResourceGraph:
    """Read JGF as Fluxion does, which drops units, so that R shows none either."""
    graph = read_jgf(data)
    graph.units.clear()
    return graph


READERS: dict[str, Callable[[bytes], ResourceGraph]] = {
    "grug": read_grug,
    "jgf": _read_jgf,
    "jgf_shorthand": _read_jgf,
    "rv1exec": read_rv1,
    "rv1exec_force": read_rv1,
}
PROMPT = "resource-query> "


def main(
    argv: Sequence[str],
    *,
    from_cluster: Callable[[bool], ResourceGraph] | None = None,
    ask_cluster: Callable[[bytes, str | None], tuple[int, str]] | None = None,
    standard_input: Iterable[str] | None = None,
) -> int:
    """Run a session and return the exit status.

    Parameters
    ----------
    argv : The arguments without the program name.
    from_cluster : Returns a graph of the present cluster for ``--from-cluster``, with consumable
        pools if its argument is true. The command line passes it, because this module must not talk
        to a cluster.
    ask_cluster : Asks the scheduling cycle's matcher about one jobspec on the present cluster, for
        ``--from-cluster --jobspec``. Returns exit status and answer.
    standard_input : Lines to read instead of standard input (tests).
    """
    options = _parser().parse_args(argv)
    try:
        if options.jobspec:
            return _ask_once(options, ask_cluster)
        started = perf_counter()
        matcher = _load(options, from_cluster)
        load_s = perf_counter() - started
        if options.test_output:
            with Path(options.test_output).open("w", encoding="utf-8") as out:
                _run(options, matcher, out, standard_input, load_s)
        else:
            _run(options, matcher, sys.stdout, standard_input, load_s)
    except BrokenPipeError:
        # The reader has closed the pipe (``| head``). Python's flush at exit must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (FluxQueueError, OSError) as failure:
        print(f"ERROR: {failure}", file=sys.stderr)
        return 1
    return 0


def _ask_once(
    options: argparse.Namespace, ask_cluster: Callable[[bytes, str | None], tuple[int, str]] | None
) -> int:
    if not options.from_cluster or ask_cluster is None:
        raise InvalidSettings(
            "needs a cluster", where="--jobspec", hint="--from-cluster --jobspec FILE"
        )
    name = options.jobspec
    text = sys.stdin.buffer.read() if name == "-" else read_file(name, document.MAX_BYTES)
    status, answer = ask_cluster(text, options.match_policy)
    print(answer)
    return status


def _run(
    options: argparse.Namespace,
    matcher: FluxionMatcher,
    out: TextIO,
    standard_input: Iterable[str] | None,
    load_s: float,
) -> None:
    session = Session(matcher, options.match_format, out, shows_elapsed=options.elapse_time)
    if options.elapse_time:
        print(f"INFO: Graph Load Time: {load_s:g}")
        print(f"INFO: Vertex Count: {len(matcher.graph)}")
        print(f"INFO: Edge Count: {len(matcher.graph) - 1}")
    for line in _lines(standard_input, shows_prompt=not options.disable_prompt):
        if not session.run_line(line):
            break


def _lines(given: Iterable[str] | None, *, shows_prompt: bool) -> Iterator[str]:
    """Yield lines of input, with history and completion at a terminal.

    It ends at the end of input, where resource-query itself would wait for ever.
    """
    if given is not None:
        yield from given
        return
    if not sys.stdin.isatty():
        # Bytes that are not UTF-8 become part of a word that no command knows.
        for line in sys.stdin.buffer:
            yield line.decode(errors="replace")
        return
    try:
        import readline

        words = sorted(COMMANDS)
        readline.set_completer(
            lambda text, i: ([w for w in words if w.startswith(text)] + [""])[i] or None
        )
        readline.parse_and_bind("tab: complete")
    except ImportError:  # no line editing on this platform, but input() works
        pass
    while True:
        try:
            yield input(PROMPT if shows_prompt else "")
        except (EOFError, KeyboardInterrupt):
            print()
            return


def _load(
    options: argparse.Namespace, from_cluster: Callable[[bool], ResourceGraph] | None
) -> FluxionMatcher:
    if options.match_subsystems.upper() != "CA":
        raise InvalidSettings(
            "only the containment subsystem is matched",
            where="match-subsystems",
            value=options.match_subsystems,
            hint="-S CA",
        )
    if options.from_cluster:
        if from_cluster is None:
            raise InvalidSettings("no cluster can be reached from here", where="from-cluster")
        graph = from_cluster(options.shares)
    elif options.load_file is None:
        raise InvalidSettings("is missing", where="load-file", hint="-L graph.graphml")
    else:
        graph = READERS[options.load_format](read_file(options.load_file, jgf.MAX_BYTES))
    graph.declare_consumable(filter(None, (options.consumable or "").split(",")))
    filters = ",".join(text for text in options.prune_filters or () if text.strip()) or DEFAULT
    return FluxionMatcher(graph, options.match_policy or "first", filters, answers_as_fluxion=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fluxqueue resource-query",
        description="Match jobspecs on a resource graph with commands from standard input. "
        "The command help lists them.",
    )
    add = parser.add_argument
    add("-L", "--load-file", help="file with the resource graph")
    add(
        "-f",
        "--load-format",
        choices=list(READERS),
        default="grug",
        metavar="FORMAT",
        help=", ".join(READERS),
    )
    add("-W", "--load-allowlist", help="accepted and ignored (it is for hwloc files)")
    add("-S", "--match-subsystems", default="CA", help="CA: containment, the only one")
    add("-P", "--match-policy", help=f"{', '.join(POLICIES)} (default: first), or a custom string")
    add(
        "-F",
        "--match-format",
        choices=list(FORMATS),
        default="simple",
        metavar="FORMAT",
        help=f"format of R: {', '.join(FORMATS)}",
    )
    add("-T", "--traverser-policy", choices=["simple"], default="simple", help="simple only")
    add("-p", "--prune-filters", action="append", help="HL:LL[,HL:LL...], with ALL for every level")
    add("-t", "--test-output", help="write the results to this file")
    add("-r", "--reserve-vtx-vec", help="accepted and ignored")
    add("-g", "--graph-format", help="accepted and ignored, as by resource-query")
    add("-o", "--graph-output", help="accepted and ignored, as by resource-query")
    add("-e", "--elapse-time", action="store_true", help="show how long each match took")
    add("-d", "--disable-prompt", action="store_true", help="show no prompt")
    add("--consumable", help="TYPE[,TYPE...]: jobs take shares of these pools (not in Fluxion)")
    add("--shares", action="store_true", help="with --from-cluster: millicores and bytes")
    add("--from-cluster", action="store_true", help="match on the current cluster")
    add(
        "--jobspec",
        metavar="FILE",
        help="with --from-cluster: what the queue would decide about this jobspec"
        " (-: standard input). Exit status 0: now, 3: later, 4: never",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

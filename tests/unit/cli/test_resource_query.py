"""``resource-query`` by example: what a session writes, and what it says about bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fluxion.formats.writers import write
from fluxion.matcher import FluxionMatcher
from fluxion.model.from_nodes import graph_from_nodes
from fluxion.model.store import ResourceGraph
from fluxion.resource_query import main
from fluxqueue.fluxjob.node import NodeFact

JOBSPEC = """version: 9999
resources: [{type: slot, count: 1, label: default, with: [{type: core, count: 2}]}]
attributes: {system: {duration: 60}}
tasks: [{command: [app], slot: default, count: {per_slot: 1}}]
"""
RULE = "INFO: =============================\n"


def cluster(takes_shares: bool = False) -> ResourceGraph:
    return graph_from_nodes(
        (NodeFact(f"node{i}", f"u{i}", {"cpu": 4000}) for i in range(2)), takes_shares=takes_shares
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a graph and a jobspec."""
    (tmp_path / "job.yaml").write_text(JOBSPEC)
    (tmp_path / "bad.yaml").write_text(JOBSPEC.replace("count: 2", "count: -2"))
    (tmp_path / "graph.json").write_text(write(FluxionMatcher(cluster()).find("status=up"), "jgf"))
    return tmp_path


def session(folder: Path, *commands: str, arguments: tuple[str, ...] = ()) -> str:
    """Run commands on the folder's graph. Returns the ``-t`` file."""
    out = folder / "out"
    lines = [command.replace("@", f"{folder}/") for command in commands]
    load = ("-L", str(folder / "graph.json"), "-f", "jgf", "-P", "lonode", "-t", str(out))
    assert main([*load, *arguments], standard_input=lines) == 0
    return out.read_text()


def test_match_cancel_and_info(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The result file has R and the INFO block. Info goes to standard output."""
    text = session(folder, "match allocate @job.yaml", "info 1", "cancel 1", "list", "quit")
    assert text == (
        "      ---------core0[1:x]\n      ---------core1[1:x]\n"
        "      ------node0[1:s]\n      ---cluster0[1:s]\n"
        f"{RULE}INFO: JOBID=1\nINFO: RESOURCES=ALLOCATED\nINFO: SCHEDULED AT=Now\n{RULE}"
    )
    shown = capsys.readouterr().out
    assert "INFO: 1, ALLOCATED, 0," in shown
    assert "INFO: 1, CANCELED, 0," in shown


def test_short_commands_and_formats(folder: Path) -> None:
    """Abbreviations work. Reservations say when."""
    text = session(
        folder, "m allocate @job.yaml", "M allocate @job.yaml @job.yaml", "m allocate @job.yaml",
        "m allocate_orelse_reserve @job.yaml", "q", "m allocate @job.yaml",
        arguments=("-F", "rv1_nosched"),
    )  # fmt: skip
    assert text.count("RESOURCES=ALLOCATED") == 4
    assert "INFO: RESOURCES=RESERVED\nINFO: SCHEDULED AT=60\n" in text
    last = json.loads([line for line in text.splitlines() if line.startswith("{")][-1])
    assert (last["execution"]["starttime"], last["execution"]["expiration"]) == (60, 120)


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("match allocate @missing.yaml", "can't open"),
        ("match allocate @bad.yaml", "resources[0].with[0].count = -2: must be from 0 to"),
        ("match allocate /dev/zero", "is larger than 1048576 bytes"),
        ("match allocate a\0b", "can't open a\0b: embedded null byte"),
        ("match sometimes @job.yaml", "unknown subcmd 'sometimes' (one of allocate, "),
        ("match allocate", "malformed command match (match {allocate|"),
        ("allocate @job.yaml", "unknown command 'allocate' (help lists them)"),
        ("info", "malformed command info (show one job: info jobid)"),
        ("info \N{SUPERSCRIPT TWO}", "nonexistent job \N{SUPERSCRIPT TWO}"),
        ("cat @missing.yaml", "can't open"),
        (
            "find status=ill",
            "expression = 'status=ill': is no predicate. Fix: status= one of down, up",
        ),
        ("cancel 7", "nonexistent job 7"),
        ("info 7", "nonexistent job 7"),
        ("find colour=blue", "no predicate"),
        ("update allocate jgf @job.yaml 1 0 10", "not JSON"),
        ("update allocate csv @job.yaml 1 0 10", "unsupported reader"),
        ("update allocate jgf @job.yaml 1 0 0", "invalid time"),
        ("partial-cancel 1 jgf @job.yaml", "nonexistent job"),
        ("attach @missing.json", "No such file"),
        ("attach @job.yaml", "not JSON"),
        ("remove /cluster0 true", "root cannot be removed"),
        ("remove 9 false", "rank = 9: the graph has no such rank"),
        ("remove /cluster0/node9 true", "the graph has no path /cluster0/node9"),
        ("remove 3-1 false", "no idset"),
        ("set-status /cluster0 sideways", "unrecognized status 'sideways' (up or down)"),
    ],
)
def test_bad_commands_are_explained(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, complaint: str
) -> None:
    """A complaint on standard error, no traceback, and the session goes on."""
    text = session(folder, command, "get-status /cluster0")
    assert complaint in capsys.readouterr().err
    assert text.endswith("/cluster0 is up\n")


def test_comments_and_empty_lines_are_passed_over(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fluxion's command files have comments."""
    assert session(folder, "# match allocate @job.yaml", "", "#") == ""
    assert capsys.readouterr().err == ""


def test_a_bad_jobspec_is_never_satisfiable(folder: Path) -> None:
    """What cannot be read is not said to fit."""
    text = session(folder, "match satisfiability @bad.yaml")
    assert text == f"{RULE}INFO: Unsatisfiable request\n{RULE}"


def test_bytes_that_are_no_text(folder: Path) -> None:
    """On standard input and in a file to show: no traceback, the session goes on."""
    (folder / "binary").write_bytes(b"\x00\xff\n")
    command = [sys.executable, "-m", "fluxqueue", "resource-query", "-d", "-f", "jgf"]
    ended = subprocess.run(
        [*command, "-L", str(folder / "graph.json")],
        input=b"\xff\ncat " + bytes(folder / "binary") + b"\nget-status /cluster0\n",
        capture_output=True,
        check=True,
    )
    assert ended.stdout.endswith(b"/cluster0 is up\n")
    assert (
        ended.stderr
        == "ERROR: unknown command '\N{REPLACEMENT CHARACTER}' (help lists them)\n".encode()
    )


def test_a_reader_that_has_enough(folder: Path) -> None:
    """``| head``: the session ends without a word."""
    (folder / "commands").write_text("get-status /cluster0\n" * 10_000)
    command = [sys.executable, "-m", "fluxqueue", "resource-query", "-d", "-f", "jgf"]
    with (
        (folder / "commands").open("rb") as commands,
        subprocess.Popen(
            [*command, "-L", str(folder / "graph.json")],
            stdin=commands,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as running,
    ):
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.wait(60) == 1
        assert running.stderr.read() == b""


def test_properties_and_status(folder: Path) -> None:
    """What set-property and set-status change, get-property and matching show."""
    text = session(
        folder, "set-property /cluster0/node0 speed=7", "get-property /cluster0/node0",
        "set-property /cluster0/node0 speed", "get-property /cluster0", "get-property /nowhere",
        "set-status /cluster0/node0 down", "match allocate @job.yaml",
        "match satisfiability @job.yaml",
    )  # fmt: skip
    assert text.startswith("speed=7\nIncorrect input format. \n")
    assert "No properties were found for /cluster0 (vtx's uniq_id=0).\n" in text
    assert "Could not find path /nowhere in resource graph.\n" in text
    assert "node1[1:s]" in text
    assert text.endswith(f"{RULE}INFO: Satisfiable request\n{RULE}")


def test_help_names_every_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """help lists all, help WORD one. Unknown words are passed over."""
    session(folder, "help", "dance", "help cancel", "help dance")
    lines = capsys.readouterr().out.splitlines()
    assert sum("INFO: cancel (c)" in line for line in lines) == 2
    assert lines[-1] == "ERROR: unknown command: dance"
    assert len(lines) == 18 + 2


def test_elapsed_times(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """-e shows load and match times on standard output, the failing match's in the results."""
    text = session(folder, *["match allocate @job.yaml"] * 5, "stat", arguments=("-e",))
    shown = capsys.readouterr().out
    assert "INFO: Vertex Count: 11" in shown
    assert shown.count("INFO: ELAPSE=") == 4
    assert text.count("INFO: ELAPSE=") == 1
    assert "INFO: Num. of Jobs Matched: 4" in shown


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-L", "nowhere"], "nowhere"),
        ([], "load-file"),
        (["--from-cluster"], "no cluster"),
        (["-L", "{folder}/graph.json", "-f", "grug"], "not XML"),
        (["-L", "{folder}/graph.json", "-f", "jgf", "-P", "fastest"], "no match policy"),
        (["-L", "{folder}/graph.json", "-f", "jgf", "-p", "core"], "no pruning filter"),
        (["-L", "{folder}/graph.json", "-f", "jgf", "-S", "PA"], "containment"),
    ],
)
def test_bad_arguments(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    """Exit status 1 and a sentence."""
    assert main([a.format(folder=folder) for a in arguments], standard_input=[]) == 1
    assert complaint in capsys.readouterr().err


def test_from_cluster(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--from-cluster asks the graph that the command line hands in."""
    arguments = ["--from-cluster", "-P", "pack"]
    commands = [f"match allocate {folder}/job.yaml"]
    assert main(arguments, from_cluster=cluster, standard_input=commands) == 0
    assert "node0[1:s]" in capsys.readouterr().out


def test_why_not_in_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is short stands on standard error. Fluxion's output has no place for it."""
    (folder / "large.yaml").write_text(
        JOBSPEC.replace("type: core, count: 2", "type: core, count: 9")
    )
    verb = "allocate_with_satisfiability"
    commands = [f"match {verb} {folder}/large.yaml", f"match allocate {folder}/large.yaml"]
    assert main(["--from-cluster"], from_cluster=cluster, standard_input=commands) == 0
    assert capsys.readouterr().err.splitlines() == [
        "WHY: needs 9 core; there are 8",
        "WHY: needs 9 core; there are 8 free",
    ]


def test_from_cluster_in_shares(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--shares asks in millicores: two jobs of 1,500 fit one node of 4,000."""
    (folder / "half.yaml").write_text(
        JOBSPEC.replace("type: core, count: 2", "type: cpu, count: 1500")
    )
    commands = [f"match allocate {folder}/half.yaml"] * 3
    arguments = ["--from-cluster", "--shares", "-P", "lonode"]
    assert main(arguments, from_cluster=cluster, standard_input=commands) == 0
    out = capsys.readouterr().out
    assert out.count("cpu0[1500:x]") == 3
    assert (out.count("node0[1:s]"), out.count("node1[1:s]")) == (2, 1)


def test_consumable_types_of_a_file(folder: Path) -> None:
    """--consumable makes pools of a Fluxion graph divisible. Without it vertices go whole."""
    nodes = [{"id": "0", "metadata": {"type": "cluster", "id": 0, "rank": -1, "paths":
              {"containment": "/cluster0"}}},
             {"id": "1", "metadata": {"type": "node", "id": 0, "rank": 0, "paths":
              {"containment": "/cluster0/node0"}}},
             {"id": "2", "metadata": {"type": "memory", "id": 0, "rank": 0, "size": 8, "unit": "GB",
              "paths": {"containment": "/cluster0/node0/memory0"}}}]  # fmt: skip
    edges = [{"source": "0", "target": "1"}, {"source": "1", "target": "2"}]
    (folder / "graph.json").write_text(json.dumps({"graph": {"nodes": nodes, "edges": edges}}))
    (folder / "gb.yaml").write_text(
        JOBSPEC.replace("type: core, count: 2", "type: memory, count: 3")
    )
    match = "match allocate @gb.yaml"
    whole = session(folder, match, match)
    assert "memory0[8:x]" in whole
    assert "No matching resources found" in whole
    shared = session(folder, match, match, match, arguments=("--consumable", "memory"))
    assert shared.count("memory0[3:x]") == 2
    assert shared.count("No matching resources found") == 1


def graph_of(folder: Path, *vertices: tuple[str, int, str, int]) -> None:
    """Write a graph: type, id, path of the vertex above, and size of each vertex."""
    nodes, edges, numbers = [], [], {"": -1}
    for number, (kind, own, above, size) in enumerate(vertices):
        path = f"{above}/{kind}{own}"
        numbers[path] = number
        nodes.append({"id": str(number), "metadata": {
            "type": kind, "id": own, "rank": -1, "size": size, "paths": {"containment": path},
        }})  # fmt: skip
        if above:
            edges.append({"source": str(numbers[above]), "target": str(number)})
    (folder / "graph.json").write_text(json.dumps({"graph": {"nodes": nodes, "edges": edges}}))


@pytest.mark.parametrize(
    ("policy", "taken"),
    [("lonode", {"core1", "memory2"}), ("hinode", {"core0", "memory0", "memory1"})],
)
def test_the_best_of_all_slots_is_taken(folder: Path, policy: str, taken: set[str]) -> None:
    """With pools of several sizes, a slot that is built later may need fewer of them."""
    node = "/cluster0/node0"
    graph_of(
        folder,
        ("cluster", 0, "", 1), ("node", 0, "/cluster0", 1), ("core", 0, node, 1),
        ("core", 1, node, 1), ("memory", 0, node, 1), ("memory", 1, node, 1),
        ("memory", 2, node, 4),
    )  # fmt: skip
    (folder / "pair.yaml").write_text(
        JOBSPEC.replace(
            "[{type: core, count: 2}]", "[{type: core, count: 1}, {type: memory, count: 2}]"
        )
    )
    found = session(folder, "match allocate @pair.yaml", arguments=("-P", policy))
    assert {line.strip(" -").split("[")[0] for line in found.splitlines() if ":x]" in line} == taken


@pytest.mark.parametrize("form", ["simple", "jgf"])
def test_filters_are_found_below_a_level_without_one(folder: Path, form: str) -> None:
    """Blocks without a filter are left out. What stands below them is shown."""
    rack = "/cluster0/row0/rack0"
    graph_of(
        folder,
        ("cluster", 0, "", 1), ("row", 0, "/cluster0", 1), ("rack", 0, "/cluster0/row0", 1),
        ("node", 0, rack, 1), ("core", 0, f"{rack}/node0", 1),
    )  # fmt: skip
    arguments = ("-F", form, "-p", "cluster:core,node:core")
    found = session(folder, "find agfilter=true", arguments=arguments)
    assert "node0" in found
    assert "rack0" not in found.replace("rack0/node0", "")

"""docker-compose.yml: valid, hardened, and in step with the code and the chart."""

from __future__ import annotations

import importlib.resources
import json
import os
import re
import shutil
import subprocess
import tomllib
from dataclasses import fields
from typing import Any

import pytest
import typer.main
import yaml

from fluxqueue.cli.main import app
from fluxqueue.process.settings import Settings
from tests.support import compose
from tests.support.wheel import ROOT

SERVICES = compose.services()
OURS = {name: one for name, one in SERVICES.items() if compose.target_of(one)}
LASTING = {name: one for name, one in SERVICES.items() if one["restart"] != "no"}
DOCUMENT = ROOT / "docs" / "admin" / "images.md"
WAYS: list[dict[str, str]] = [
    {},
    {"KUBECONFIG_DIR": "/home/user/.kube", "EMBEDDED_CLUSTERS": "0", "RUN_AS": "1000:1000"},
]
WAYS_IDS = ["embedded cluster", "own cluster"]
PREPARES_AS_ROOT = "owner"
SERVER_VARIABLES = {"POSTGRES_DB", "POSTGRES_USER", "POSTGRES_PASSWORD"}


def compose_command() -> list[str]:
    """The Compose program of this machine. Its `config` needs no engine."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]):
            done = subprocess.run([*command, "version"], capture_output=True, check=False)
            if done.returncode == 0:
                return command
    pytest.skip("neither `docker compose` nor docker-compose is installed here")


@pytest.mark.parametrize("environ", WAYS, ids=WAYS_IDS)
def test_compose_takes_the_file_and_reads_it_as_we_do(environ: dict[str, str]) -> None:
    """Its schema refuses unknown keys. Its services and commands are those that we test."""
    bare = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        [*compose_command(), "-f", str(ROOT / "docker-compose.yml"), "config"],
        capture_output=True,
        text=True,
        check=False,
        env={**bare, **environ},
    )
    assert done.returncode == 0, done.stderr
    read = yaml.safe_load(done.stdout)["services"]
    ours = compose.services(environ)
    # A service that is scaled to nothing is still listed.
    assert read.keys() == ours.keys()
    for name, one in ours.items():
        assert (read[name].get("command") or []) == one.get("command", []), name
        assert read[name].get("environment", {}) == one.get("environment", {}), name
        assert read[name]["image"] == one["image"]
    assert read["kubernetes"].get("scale", 1) == int(environ.get("EMBEDDED_CLUSTERS", "1"))
    mounts = [volume["source"] for volume in read["worker"]["volumes"]]
    assert mounts == [environ.get("KUBECONFIG_DIR", "kube")]


@pytest.fixture(scope="module")
def specification() -> Any:
    """The Compose specification's schema, as check-jsonschema carries it."""
    from jsonschema import (
        Draft202012Validator,
    )  # with it comes a grammar that is compiled at each import

    vendor = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    return Draft202012Validator(
        json.loads((vendor / "compose-spec.json").read_text(encoding="utf-8"))
    )


@pytest.mark.xdist_group("jsonschema")
@pytest.mark.parametrize("environ", WAYS, ids=WAYS_IDS)
def test_it_is_of_the_specification(specification: Any, environ: dict[str, str]) -> None:
    """Where no Compose program is, too."""
    assert not list(specification.iter_errors(compose.load(environ)))


@pytest.mark.xdist_group("jsonschema")
@pytest.mark.parametrize("key", ["read_onyl", "volume", "healthchek"])
def test_a_misspelt_key_is_not(specification: Any, key: str) -> None:
    """So what the test above says is worth something."""
    content = compose.load()
    content["services"]["worker"][key] = True
    (error,) = specification.iter_errors(content)
    assert key in error.message


@pytest.mark.parametrize("name", [n for n, one in SERVICES.items() if one.get("volumes")])
def test_every_volume_is_declared_and_used(name: str) -> None:
    """A misspelt one would be another, empty volume."""
    declared = compose.load()["volumes"].keys()
    mounted = {mount.split(":")[0] for mount in SERVICES[name]["volumes"]}
    assert mounted <= declared
    everywhere = {m.split(":")[0] for one in SERVICES.values() for m in one.get("volumes", ())}
    assert everywhere == declared


@pytest.mark.parametrize("name", [n for n, one in OURS.items() if "entrypoint" not in one])
def test_every_command_is_one_of_ours(name: str) -> None:
    """Sub-command, options and arguments parse. Nothing is executed."""
    words = compose.command_line(OURS[name])
    if words[:4] == ["python", "-P", "-m", "localcluster"]:
        from localcluster.__main__ import parse

        assert parse(words[4:]).port == 6443
        return
    if words[0].endswith("/python"):
        from fluxqueue_webhook.__main__ import _parse

        assert words[1:4] == ["-P", "-m", "fluxqueue_webhook"]
        assert _parse(words[4:]).port == 8443
        return
    command: Any = typer.main.get_command(app)
    context, rest = None, words[1:]
    while hasattr(command, "commands"):
        context = command.make_context(command.name, rest, parent=context)
        _, command, rest = command.resolve_command(context, [rest[0], *rest[1:]])
        assert command is not None, words
    assert not command.make_context(command.name, rest, parent=context).args


@pytest.mark.parametrize("name", list(OURS))
def test_every_variable_is_a_setting(name: str) -> None:
    """A misspelt one would go unnoticed."""
    known = {one.metadata["variable"].name for one in fields(Settings)}
    environ = OURS[name].get("environment", {})
    assert environ.keys() <= known
    Settings.from_env(environ)


def test_the_databases_variables_are_what_our_url_says() -> None:
    """User, password and database of the server and of the clients."""
    server = SERVICES["postgres"]["environment"]
    assert server.keys() == SERVER_VARIABLES
    url = (
        f"postgresql://{server['POSTGRES_USER']}:{server['POSTGRES_PASSWORD']}"
        f"@postgres:5432/{server['POSTGRES_DB']}"
    )
    assert {one.get("environment", {}).get("DATABASE_URL", url) for one in OURS.values()} == {url}


@pytest.mark.parametrize("name", list(OURS))
def test_containers_have_no_rights_and_write_nowhere(name: str) -> None:
    """Read-only, no capability, no way to gain one. An ordinary user."""
    one = OURS[name]
    assert one["read_only"] is True
    assert one["cap_drop"] == ["ALL"]
    assert one["security_opt"] == ["no-new-privileges:true"]
    assert not one.get("privileged")
    if name == PREPARES_AS_ROOT:
        assert one["cap_add"] == ["CHOWN"]
        return
    assert "cap_add" not in one
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", one["user"])


@pytest.mark.parametrize("name", [n for n, one in SERVICES.items() if "ports" in one])
def test_ports_are_published_on_loopback_only(name: str) -> None:
    """The password in the file is for one machine. Other addresses need a variable."""
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name]["ports"])


def test_what_lasts_has_a_health_check_and_what_does_not_is_waited_for() -> None:
    """A dependency is `healthy` or `completed`, never merely started."""
    for name, one in SERVICES.items():
        assert ("healthcheck" in one) == (name in LASTING), name
        for other, how in one.get("depends_on", {}).items():
            wanted = "service_healthy" if other in LASTING else "service_completed_successfully"
            assert how["condition"] == wanted, (name, other)


def test_somebody_waits_for_every_service_that_ends() -> None:
    """`up --wait` takes the end of a container for a failure unless another has asked for it."""
    ending = SERVICES.keys() - LASTING.keys()
    asked_for = {other for one in SERVICES.values() for other in one.get("depends_on", {})}
    assert ending
    assert ending <= asked_for


def test_documented_variables_are_those_of_the_file() -> None:
    """Of docs/admin/images.md, with their defaults. The images' names are for `make`."""
    rows = re.findall(r"^\| `([A-Z_]+)` \| (?:`([^`]*)`|a volume) \|", DOCUMENT.read_text(), re.M)
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    used = dict(re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", text))
    known = {name: value for name, value in used.items() if not name.endswith("_IMAGE")}
    assert dict(rows).keys() == known.keys()
    assert all(known[name] == value for name, value in rows if value)


def test_images_are_pinned_to_this_version() -> None:
    """No `latest`. Ours are of the project's version."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for one in OURS.values():
        assert one["image"].endswith(f":{content['project']['version']}")
    assert re.search(r":\d+\.\d+$", SERVICES["postgres"]["image"])


def test_images_are_those_of_the_chart() -> None:
    """One name for each thing, and one version of Postgres."""
    text = (ROOT / "chart" / "values.yaml").read_text(encoding="utf-8")
    values: dict[str, Any] = yaml.safe_load(text)
    registry, server = values["image"]["registry"], values["postgres"]["image"]
    wanted = {f"{registry}/{part['image']['repository']}" for part in (values, values["webhook"])}
    wanted |= {f"{registry}/converged-computing/localcluster"}  # not the chart's: for trying out
    assert {one["image"].rpartition(":")[0] for one in OURS.values()} == wanted
    assert SERVICES["postgres"]["image"] == (
        f"{server['registry']}/{server['repository']}:{server['tag']}"
    )


def test_named_volumes_are_declared() -> None:
    """And each declared one is used."""
    used = {
        volume.partition(":")[0] for one in SERVICES.values() for volume in one.get("volumes", [])
    }
    assert used == compose.load()["volumes"].keys()


def test_what_stands_in_for_a_word_is_not_read_again() -> None:
    """A database on port 46443 was looked for on another one as soon as 6443 had a stand-in."""
    stand_ins = {"//db": "//h:46443", "/kube": "/tmp/8443/kube", "6443": "8443", "8443": "1"}
    text = "sql://db/kube//kubernetes:6443 /kube/a 8443"
    found = compose.translated(text, stand_ins)
    assert found == "sql://h:46443/tmp/8443/kube//kubernetes:8443 /tmp/8443/kube/a 1"

"""Environment: what the chart sets exists, and what exists can be set."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import yaml

from chart.schema import SET_BY_THE_CHART
from fluxqueue import __version__
from fluxqueue.process.settings import Settings
from fluxqueue_webhook.__main__ import _parse
from tests.chart.rendering import (
    EXTERNAL,
    NAMESPACE,
    container,
    containers,
    environment,
    find,
    merged,
    render,
)

VARIABLES = {one.metadata["variable"].name: one for one in fields(Settings)}
LIBPQ = {"PGPASSWORD", "PGSSLMODE", "PGSSLROOTCERT"}
"""Read by libpq itself where the URL does not say it."""

OURS = [
    ("Deployment", "fluxqueue-controller"),
    ("Deployment", "fluxqueue-worker"),
    ("Job", "fluxqueue-crds"),
    ("Job", "fluxqueue-uninstall"),
]


@pytest.mark.parametrize("values", [{}, EXTERNAL], ids=["bundled", "external"])
def test_every_variable_that_the_chart_sets_exists(values: dict[str, Any]) -> None:
    seen: set[str] = set()
    for owner, one in containers(render(values)):
        if owner in OURS:
            unknown = set(environment(one)) - set(VARIABLES) - LIBPQ
            assert not unknown, (owner, one["name"], unknown)
            seen |= set(environment(one))
    assert seen >= {"DATABASE_URL", "FLUXQUEUE_NAMESPACE", "FLUXQUEUE_CERT_SECRET"}


def _settable() -> list[str]:
    return [name for name in VARIABLES if name not in SET_BY_THE_CHART]


def _values_of(name: str) -> list[Any]:
    """Give what may stand in a values file: the default, and the ends of what is allowed."""
    one = VARIABLES[name]
    variable = one.metadata["variable"]
    if isinstance(one.default, bool):
        return [True, False]
    if variable.choices:
        return list(variable.choices)
    if isinstance(one.default, str):
        return ["text"]
    numbers = {one.default, variable.low, variable.high} - {None}
    return sorted(type(one.default)(number) for number in numbers)


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.parametrize("name", _settable())
def test_every_setting_can_be_set_and_arrives_as_it_was_meant(name: str) -> None:
    """Also large numbers, which templates like to write as 2.6e+06."""
    field = VARIABLES[name]
    for value in _values_of(name):
        given = environment(
            container("Deployment", "fluxqueue-worker", {"settings": {name: value}})
        )[name]
        variable = field.metadata["variable"]
        assert variable.parse(given, type(field.default)) == value, given
        migration = find("Deployment", "fluxqueue-controller", {"settings": {name: value}})
        (init,) = migration["spec"]["template"]["spec"]["initContainers"]
        assert environment(init)[name] == given


def test_settings_make_a_whole_that_is_accepted() -> None:
    """What a container is given passes the validation of the process that reads it."""
    for part in ("controller", "worker"):
        given = environment(container("Deployment", f"fluxqueue-{part}"))
        plain = {key: value for key, value in given.items() if isinstance(value, str)}
        assert given["FLUXQUEUE_NAMESPACE"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}
        settings = Settings.from_env({**plain, "FLUXQUEUE_NAMESPACE": NAMESPACE})
        assert settings.log_json
        assert settings.database_url.endswith(
            "@fluxqueue-postgres.fluxqueue-system.svc:5432/fluxqueue"
        )


def test_only_the_controller_makes_certificates() -> None:
    """And makes those that the webhook's Deployment mounts and its Service serves."""
    given = environment(container("Deployment", "fluxqueue-controller"))
    mounted = find("Deployment", "fluxqueue-webhook")["spec"]["template"]["spec"]["volumes"]
    (secret,) = [one["secret"] for one in mounted if one["name"] == "certificate"]
    assert given["FLUXQUEUE_CERT_SECRET"] == secret["secretName"]
    assert (
        given["FLUXQUEUE_CERT_SERVICE"] == find("Service", "fluxqueue-webhook")["metadata"]["name"]
    )
    (configuration,) = [
        one["metadata"]["name"] for one in render() if one["kind"].startswith("MutatingWebhook")
    ]
    assert given["FLUXQUEUE_CERT_CONFIGURATION"] == configuration
    for part, values in (
        ("worker", {}),
        ("controller", {"certificates": {"provider": "cert-manager"}}),
    ):
        others = environment(container("Deployment", f"fluxqueue-{part}", values))
        assert not [name for name in others if name.startswith("FLUXQUEUE_CERT_")]


def test_the_port_of_probes_is_the_one_that_is_served() -> None:
    port = VARIABLES["FLUXQUEUE_HTTP_PORT"].default
    for part in ("controller", "worker"):
        assert container("Deployment", f"fluxqueue-{part}")["ports"] == [
            {"name": "probes", "containerPort": port}
        ]
        service = find("Service", f"fluxqueue-{part}-metrics")
        assert [one["port"] for one in service["spec"]["ports"]] == [port]


def test_arguments_of_the_webhook_are_those_it_knows() -> None:
    one = container(
        "Deployment",
        "fluxqueue-webhook",
        {"webhook": {"drainSeconds": 7, "logLevel": "DEBUG"}},
    )
    options = _parse(one["args"])
    assert one["command"] == ["python", "-P", "-m", "fluxqueue_webhook"]
    assert (options.drain, options.log_level, options.log_json) == (7.0, "DEBUG", True)
    mounts = {mount["name"]: mount["mountPath"] for mount in one["volumeMounts"]}
    assert str(options.cert_dir) == mounts["certificate"]
    assert one["ports"] == [{"name": "https", "containerPort": options.port}]
    assert environment(one) == {
        "POD_NAMESPACE": {"fieldRef": {"fieldPath": "metadata.namespace"}},
        "FLUXQUEUE_ALIASES": "kueue",
    }


@pytest.mark.parametrize(("given", "expected"), [(None, 30), (25, 40), (0, 15), (2.5, 18)])
def test_a_worker_has_the_time_that_its_tasks_are_given(given: Any, expected: int) -> None:
    values = {} if given is None else {"settings": {"FLUXQUEUE_WORKER_SHUTDOWN_S": given}}
    spec = find("Deployment", "fluxqueue-worker", values)["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == expected
    assert Settings().worker_shutdown_s + 15 == 30


def test_a_webhook_has_the_time_that_it_drains() -> None:
    spec = find("Deployment", "fluxqueue-webhook", {"webhook": {"drainSeconds": 60}})["spec"]
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 75


# --- the database --------------------------------------------------------------------------------


def test_external_database_by_parts() -> None:
    given = environment(container("Deployment", "fluxqueue-worker", EXTERNAL))
    assert given["DATABASE_URL"] == "postgresql://fluxqueue@db.example.org:5432/fluxqueue"
    assert given["PGPASSWORD"] == {"secretKeyRef": {"name": "queue", "key": "password"}}
    assert given["PGSSLMODE"] == "verify-full"
    assert given["PGSSLROOTCERT"] == "/etc/fluxqueue/database/ca.crt"
    spec = find("Deployment", "fluxqueue-worker", EXTERNAL)["spec"]["template"]["spec"]
    (volume,) = [one["secret"] for one in spec["volumes"] if one["name"] == "database-ca"]
    assert volume["secretName"] == "queue"
    assert volume["items"] == [{"key": "ca.pem", "path": "ca.crt"}]


def test_external_database_by_url() -> None:
    values = merged(
        EXTERNAL, {"externalDatabase": {"urlKey": "url", "sslmode": "require", "caKey": ""}}
    )
    given = environment(container("Deployment", "fluxqueue-worker", values))
    assert given["DATABASE_URL"] == {"secretKeyRef": {"name": "queue", "key": "url"}}
    assert given["PGSSLMODE"] == "require"
    assert "PGPASSWORD" not in given
    assert "PGSSLROOTCERT" not in given


def test_bundled_database_serves_what_the_parts_ask_for() -> None:
    server = container("StatefulSet", "fluxqueue-postgres")
    given = environment(server)
    asked = environment(container("Deployment", "fluxqueue-worker"))
    assert asked["PGPASSWORD"]["secretKeyRef"] == {"name": "fluxqueue-postgres", "key": "password"}
    assert given["POSTGRES_USER"] == given["POSTGRES_DB"] == "fluxqueue"
    mounts = {mount["name"]: mount["mountPath"] for mount in server["volumeMounts"]}
    assert given["PGDATA"].startswith(mounts["data"] + "/")
    assert given["POSTGRES_PASSWORD_FILE"] == mounts["password"] + "/password"
    assert "-c" in server["args"]
    assert "max_connections=200" in server["args"]


def test_bundled_database_keeps_its_volume() -> None:
    spec = find("StatefulSet", "fluxqueue-postgres")["spec"]
    assert spec["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": "Retain",
        "whenScaled": "Retain",
    }
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "8Gi"
    # A template cannot be changed: nothing that an upgrade changes may stand in it.
    assert claim["metadata"] == {"name": "data"}


def test_a_new_version_of_the_chart_restarts_no_database() -> None:
    """Labels of pods carry no version. A changed pod template would be a restart."""
    text = yaml.safe_dump(find("StatefulSet", "fluxqueue-postgres")["spec"])
    assert __version__ not in text


@pytest.mark.parametrize("part", ["controller", "worker"])
def test_migration_comes_before_the_part(part: str) -> None:
    spec = find("Deployment", f"fluxqueue-{part}")["spec"]["template"]["spec"]
    (init,) = spec["initContainers"]
    (main,) = spec["containers"]
    assert init["command"] == ["fluxqueue", "db", "upgrade", "--pre"]
    assert main["command"] == ["fluxqueue", part]
    assert init["image"] == main["image"]
    assert environment(init)["DATABASE_URL"] == environment(main)["DATABASE_URL"]

"""The chart is sound as Helm and the Kubernetes API schemas see it."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import helm_python
import pytest
import yaml

from fluxqueue import __version__
from fluxqueue.kube.installation import VIEW_NAME, VIEW_NAMESPACE
from tests.chart.rendering import (
    CHART,
    EVERYTHING,
    EXTERNAL,
    ha_values,
    id_of,
    merged,
    render,
    render_files,
)

pytestmark = pytest.mark.xdist_group("jsonschema")

OLDEST = "1.30"
NEWEST = "newest"
"""The newest version that the validator knows."""

VALUE_SETS: dict[str, dict[str, Any]] = {
    "default": {},
    "ha": ha_values(),
    "everything": EVERYTHING,
    "external": EXTERNAL,
    "openshift": {"openshift": "yes"},
    "ha-external-everything": merged(ha_values(), EVERYTHING, EXTERNAL),
}

OTHERS = {
    "ServiceMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "Issuer": "cert-manager.io/v1",
    "Certificate": "cert-manager.io/v1",
}
"""Kinds that come with other operators: no schema of Kubernetes' own describes them."""


@pytest.fixture(scope="module")
def validator() -> Iterator[Any]:
    """Kubernetes' schemas, imported where they are used: that takes three seconds.

    The definitions of a version are megabytes, and would be read anew for each document.
    """
    import kubernetes_validate.utils

    utils = kubernetes_validate.utils
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", functools.cache(utils.schema_contents))
        yield kubernetes_validate


@pytest.mark.cases_long("the other values files")
@pytest.mark.parametrize("version", [OLDEST, "1.36"])
@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_helm_finds_nothing_to_complain_about(values: dict[str, Any], version: str) -> None:
    report = helm_python.lint(CHART, values, strict=True, kube_version=f"v{version}.0")
    assert report["errors"] == []
    assert [one["error"] for one in report["messages"]] in ([], ["icon is recommended"])


@pytest.mark.cases_long("the other values files and versions")
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_every_document_fits_the_schema_of_kubernetes(
    values: dict[str, Any], version: str, validator: Any
) -> None:
    """Strict: a field that the version does not know is an error, too."""
    if version == NEWEST:
        version = _newest(validator)
    seen = Counter(
        _validate(validator, document, version)
        for document in render(values)
        if OTHERS.get(document["kind"]) != document["apiVersion"]
    )
    assert set(seen) == {version}
    assert seen[version] > 30


def _newest(validator: Any) -> str:
    return str(validator.utils.major_minor(validator.utils.latest_version()))


def _validate(validator: Any, document: dict[str, Any], version: str) -> str:
    try:
        return str(validator.validate(document, version, strict=True))
    except validator.ValidationError as error:
        raise AssertionError(f"{id_of(document)} at {list(error.path)}: {error.message}") from error


def test_the_schemas_are_of_the_versions_that_are_asked_for(validator: Any) -> None:
    """Were one missing, an older one would be used without a word."""
    assert tuple(map(int, _newest(validator).split("."))) >= (1, 36)
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "date": {}}
    with pytest.raises(validator.ValidationError):
        validator.validate(config_map, OLDEST, strict=True)


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_every_document_has_a_name_of_its_own_and_the_release_on_it(
    values: dict[str, Any],
) -> None:
    documents = render(values, name="blue", namespace="queue")
    ids = Counter(id_of(document) for document in documents)
    assert [one for one, count in ids.items() if count > 1] == []
    for document in documents:
        meta = document["metadata"]
        assert meta["labels"]["app.kubernetes.io/instance"] == "blue", id_of(document)
        if id_of(document) == ("ConfigMap", VIEW_NAME):
            continue  # command lines look for this one, whatever the release is called
        assert meta["name"].startswith("blue-fluxqueue"), id_of(document)
        assert meta.get("namespace") in {
            # cluster-autoscaler writes its status into kube-system, and the Role reads it there.
            *(None, "queue", "default", VIEW_NAMESPACE),
            *(["kube-system"] if meta["name"].endswith("-autoscaler-status") else []),
        }, id_of(document)


def test_command_lines_find_what_the_chart_writes() -> None:
    """The one name that belongs to no release."""
    (found,) = [one for one in render({"view": {"enabled": True}}) if one["kind"] == "ConfigMap"]
    assert (found["metadata"]["namespace"], found["metadata"]["name"]) == (
        VIEW_NAMESPACE,
        VIEW_NAME,
    )
    assert set(found["data"]) == {"service", "namespace"}


def test_names_stay_short_enough() -> None:
    """A Service's name, the shortest limit of all, has 63 characters."""
    for document in render(EVERYTHING, name="a" * 53):
        assert len(document["metadata"]["name"]) <= 63, id_of(document)


def test_the_chart_is_of_this_version() -> None:
    with (CHART / "Chart.yaml").open(encoding="utf-8") as file:
        chart = yaml.safe_load(file)
    assert chart["appVersion"] == __version__
    assert chart["version"] == __version__


def test_the_package_holds_what_is_needed_and_no_more(tmp_path: Any) -> None:
    """The generator of the schema stays at home."""
    archive = helm_python.package(CHART, destination=tmp_path)
    with helm_python.Chart.load(archive) as packaged:
        names = {one["name"] for one in packaged.files}
        assert {one["filename"].split("/")[-1] for one in packaged.crds} >= {"fluxjobs.yaml"}
        assert packaged.schema is not None
    assert {"files/dashboard.json", "files/alerts.yaml", "files/queue_a_job.py"} <= names
    assert not [name for name in names if name.endswith((".pyc", "schema.py"))]


@pytest.mark.parametrize("namespaces", ["optIn", "optOut"])
def test_notes_give_the_next_commands(namespaces: str) -> None:
    values = {"webhook": {"namespaces": namespaces}}
    notes = render_files(values, name="blue", namespace="queue")["NOTES.txt"]
    commands = [line.strip() for line in notes.splitlines() if line.startswith("     ")]
    label = ["kubectl label namespace default fluxqueue/managed=true"]
    assert commands[1:-1] == [
        *(label if namespaces == "optIn" else []),
        "helm -n queue test blue --logs",
    ]
    assert commands[0].startswith("kubectl -n queue wait ")
    assert commands[-1] == "kubectl get fluxjobs -A --watch"
    assert "<no value>" not in notes

"""What a test suite of somebody else gets from the pytest plugin, in a pytest run of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import localcluster

SUITE = """
import asyncio, ssl, urllib.request
from localcluster import LocalClusterConfig, NodeShape
import pytest, yaml

@pytest.fixture(scope="session")
def localcluster_config():
    return LocalClusterConfig(nodes=[NodeShape("only")])

def get(cluster, path):
    context = ssl.create_default_context(cadata=cluster.ca_pem.decode())
    headers = {"Authorization": f"Bearer {cluster.token}"}
    asked = urllib.request.Request(cluster.url + path, headers=headers)
    with urllib.request.urlopen(asked, context=context, timeout=30) as answer:
        return yaml.safe_load(answer.read())

def test_the_nodes_are_those_that_were_chosen(localcluster):
    listed = get(localcluster, "/api/v1/nodes")
    assert [node["metadata"]["name"] for node in listed["items"]] == ["only"]

async def test_a_namespace_of_its_own(localcluster, localcluster_namespace):
    path = f"/api/v1/namespaces/{localcluster_namespace}"
    found = await asyncio.to_thread(get, localcluster, path)
    assert found["status"]["phase"] == "Active"

def test_the_next_test_has_another(localcluster, localcluster_namespace):
    assert localcluster_namespace == "test-2"
    assert yaml.safe_load(localcluster.kubeconfig.read_text())["current-context"]
"""


def test_one_cluster_for_the_session_and_a_namespace_for_each_test(
    pytester: pytest.Pytester,
) -> None:
    """From synchronous and asynchronous tests alike; the plugin is found by its entry point."""
    pytester.makepyfile(SUITE)
    assert Path.cwd() == pytester.path
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-o", "asyncio_mode=auto")
    done.assert_outcomes(passed=3)


def test_who_uses_no_fixture_does_not_pay_for_the_cluster() -> None:
    """pytest loads the plugin in every run of an environment that has this package."""
    script = "import sys, localcluster.pytest_plugin; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "localcluster.pytest_plugin" in loaded
    assert not loaded & {"aiohttp", "cryptography", "yaml", "localcluster.cluster"}


def test_the_seven_names() -> None:
    """Each is there, though none is imported before it is used."""
    assert {name: getattr(localcluster, name).__name__ for name in localcluster.__all__} == {
        name: name for name in localcluster.__all__
    }
    assert len(localcluster.__all__) == 7
    with pytest.raises(AttributeError, match="no attribute 'Cluster'"):
        _ = localcluster.Cluster

"""URL paths of resources."""

from __future__ import annotations

import pytest

from fluxqueue.kube import resources as r


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (r.PODS.path(), "/api/v1/pods"),
        (r.PODS.path("a"), "/api/v1/namespaces/a/pods"),
        (r.PODS.path("a", "b", "binding"), "/api/v1/namespaces/a/pods/b/binding"),
        (r.NODES.path(name="n"), "/api/v1/nodes/n"),
        (r.NODES.path("ignored", "n", "status"), "/api/v1/nodes/n/status"),
        (r.JOBS.path("a", "b"), "/apis/batch/v1/namespaces/a/jobs/b"),
        (
            r.FLUXJOBS.path("a"),
            "/apis/jobs.converged-computing.org/v1alpha1/namespaces/a/fluxjobs",
        ),
        (r.NAMESPACES.path(name="a/b"), "/api/v1/namespaces/a%2Fb"),
    ],
)
def test_paths(path: str, expected: str) -> None:
    """Core and named groups, all namespaces and one, subresources, escapes."""
    assert path == expected


def test_object_without_namespace_is_refused() -> None:
    """Asking for a namespaced object without its namespace would address something else."""
    with pytest.raises(ValueError, match="needs its namespace"):
        r.PODS.path(name="b")


def test_names() -> None:
    """apiVersion and the kubectl name."""
    assert (r.PODS.api_version, r.PODS.key) == ("v1", "pods")
    assert (r.JOBS.api_version, r.JOBS.key) == ("batch/v1", "jobs.batch")

"""How ``fluxqueue check`` tells its findings, and where it looks for database and cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxqueue.checking import Finding, Severity
from fluxqueue.cli.check_invariants import _settings, describe
from fluxqueue.errors import InvalidSettings

BROKEN = Finding("node over capacity", "Node node-1 cpu", "cpu: 17 bound of 16")
WARNING = Finding("effect status lags", "Job default/pi", "overdue", Severity.WARNING)


def test_health_is_one_line() -> None:
    """No news is good news, with a word on warnings."""
    assert describe([]) == ["all invariants hold"]
    assert describe([WARNING])[-1] == "all invariants hold, 1 warnings"


def test_what_is_broken_comes_first() -> None:
    """Each finding with invariant, subject and detail. The sum at the end."""
    assert describe([WARNING, BROKEN]) == [
        "broken   node over capacity: Node node-1 cpu: cpu: 17 bound of 16",
        "warning  effect status lags: Job default/pi: overdue",
        "1 broken, 1 warnings",
    ]


def test_a_running_up_is_found_by_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is named: database and cluster are those that ``fluxqueue up`` left there."""
    monkeypatch.setenv("FLUXQUEUE_DATA_DIR", str(tmp_path))
    for name in ("DATABASE_URL", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidSettings, match="fluxqueue up"):
        _settings("", None)
    (tmp_path / "database-url").write_text("postgresql://here/fluxqueue\n")
    (tmp_path / "kubeconfig").touch()
    found = _settings("", None)
    assert found.database_url == "postgresql://here/fluxqueue"
    assert found.kubeconfig == str(tmp_path / "kubeconfig")
    given = _settings("postgresql://there/x", tmp_path / "other")
    assert (given.database_url, given.kubeconfig) == (
        "postgresql://there/x",
        str(tmp_path / "other"),
    )

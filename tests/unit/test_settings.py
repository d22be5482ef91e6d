"""The environment is read once, and every refusal names variable, value and what is allowed."""

from __future__ import annotations

import dataclasses

import pytest

from fluxqueue.errors import InvalidSettings
from fluxqueue.process.settings import Settings, describe
from fluxqueue_webhook.__main__ import OPTIONS


def test_an_empty_environment_gives_the_defaults() -> None:
    """Nothing has to be set."""
    assert Settings.from_env({}) == Settings()
    assert Settings().worker_polling_s == 0.5


def test_an_empty_variable_counts_as_unset() -> None:
    """Charts and compose files pass empty strings for what was not chosen."""
    assert Settings.from_env({"FLUXQUEUE_WORKER_CONCURRENCY": "", "DATABASE_URL": ""}) == Settings()


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("DATABASE_URL", "postgresql://h/d", "database_url", "postgresql://h/d"),
        ("KUBECONFIG", "/a:/b", "kubeconfig", "/a:/b"),
        ("FLUXQUEUE_LOG_LEVEL", "debug", "log_level", "DEBUG"),
        ("FLUXQUEUE_LOG_JSON", "Yes", "log_json", True),
        ("FLUXQUEUE_LOG_JSON", "0", "log_json", False),
        ("FLUXQUEUE_WORKER_CONCURRENCY", "3", "worker_concurrency", 3),
        ("FLUXQUEUE_WORKER_POLLING_S", "0.5", "worker_polling_s", 0.5),
        ("FLUXQUEUE_DEFAULT_CPU_M", "250", "default_cpu_m", 250),
        ("FLUXQUEUE_QUEUE_POLICY", "conservative", "queue_policy", "conservative"),
    ],
)
def test_a_variable_is_read(variable: str, text: str, name: str, value: object) -> None:
    """Each kind of value: text, choice, truth, whole number, number."""
    settings = Settings.from_env({variable: text})
    assert getattr(settings, name) == value
    assert dataclasses.replace(settings, **{name: getattr(Settings(), name)}) == Settings()


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("FLUXQUEUE_LOG_LEVEL", "loud", "DEBUG, INFO, WARNING, ERROR, CRITICAL"),
        ("FLUXQUEUE_LOG_JSON", "maybe", "true or false"),
        ("FLUXQUEUE_WORKER_CONCURRENCY", "many", "a whole number, 1 to 200"),
        ("FLUXQUEUE_WORKER_CONCURRENCY", "2.5", "a whole number, 1 to 200"),
        ("FLUXQUEUE_WORKER_CONCURRENCY", "0", "a whole number, 1 to 200"),
        ("FLUXQUEUE_WORKER_POLLING_S", "nan", "a number, 0.05 to 60"),
        ("FLUXQUEUE_WORKER_POLLING_S", "-1", "a number, 0.05 to 60"),
        ("FLUXQUEUE_WORKER_POLLING_S", "inf", "a number, 0.05 to 60"),
        ("FLUXQUEUE_QUEUE_POLICY", "EASY", "fcfs, easy, hybrid, conservative"),
    ],
)
def test_a_bad_value_is_refused_in_full_words(variable: str, text: str, allowed: str) -> None:
    """Variable, value and allowed values stand in one line."""
    with pytest.raises(InvalidSettings) as caught:
        Settings.from_env({variable: text})
    assert str(caught.value) == f"{variable}: {text!r} is not valid. Fix: give {allowed}"


def test_a_misspelt_variable_is_refused_with_the_right_name() -> None:
    """Otherwise the default would be used in silence."""
    with pytest.raises(InvalidSettings, match="did you mean FLUXQUEUE_WORKER_CONCURRENCY"):
        Settings.from_env({"FLUXQUEUE_WORKER_CONCURENCY": "3"})


@pytest.mark.parametrize(
    "variable",
    [
        "FLUXQUEUE_WEBHOOK_SERVICE_HOST",
        "FLUXQUEUE_WEBHOOK_PORT_443_TCP_ADDR",
        "FLUXQUEUE_PORT",
        "FLUXQUEUE_POSTGRES_SERVICE_PORT_POSTGRES",
    ],
)
def test_what_kubernetes_injects_for_our_services_is_no_setting(variable: str) -> None:
    """Every container beside a Service named fluxqueue-... gets such variables."""
    assert Settings.from_env({variable: "tcp://10.0.0.1:443"}) == Settings()


def test_a_lease_that_cannot_survive_one_lost_renewal_is_refused() -> None:
    """Two variables that are each valid may contradict each other."""
    with pytest.raises(InvalidSettings, match="FLUXQUEUE_LEASE_DURATION_S"):
        Settings.from_env({"FLUXQUEUE_LEASE_DURATION_S": "6", "FLUXQUEUE_LEASE_RENEW_S": "4"})


def test_the_password_is_not_in_the_representation() -> None:
    """Settings get logged. The database URL holds a password."""
    shown = repr(Settings.from_env({"DATABASE_URL": "postgresql://u:pass-word@h/d"}))
    assert "pass-word" not in shown


def test_settings_do_not_change() -> None:
    """Read once means once."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().log_level = "DEBUG"  # type: ignore[misc]


def test_the_table_names_every_setting() -> None:
    """The documentation is made from what validates."""
    table = describe()
    assert table.count("\n") == len(dataclasses.fields(Settings)) + 1
    assert "| `FLUXQUEUE_WORKER_POLLING_S` | 0.5 | 0.05 to 60 |" in table


def test_the_webhook_reads_variables_of_this_table_alone() -> None:
    """With the same choices. Only its namespace comes from the pod."""
    known = {one.metadata["variable"].name: one for one in dataclasses.fields(Settings)}
    read = {variable: (default, more) for _, variable, default, _, more in OPTIONS if variable}
    assert {*read} - {*known} == {"POD_NAMESPACE"}
    for variable, (default, more) in read.items():
        if variable in known:
            assert default in {known[variable].default, ""}, "empty: not loaded here"
            assert more.get("choices", ()) == known[variable].metadata["variable"].choices


def test_every_default_is_allowed() -> None:
    """A default outside its own range could not be set back by hand."""
    defaults = {
        one.metadata["variable"].name: str(one.default) for one in dataclasses.fields(Settings)
    }
    assert Settings.from_env(defaults) == Settings()

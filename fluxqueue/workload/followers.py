"""What follows a pod: the pods that it makes once it runs, and the slots that are kept for them.

A *driver* makes further pods. It starts only with slots for these *followers*, which its annotation
(``labels.FOLLOWERS``) describes. Admission writes the annotation if the arguments of a Spark driver
tell it (``learn_followers``). ``workload.groups`` makes driver and followers one group, and
``kinds.pod_group`` asks for their slots. Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.node import NAME_KEY
from fluxqueue.workload import labels
from fluxqueue.workload.pod_resources import raw_request
from fluxqueue.workload.quantity import parse_quantity, to_base_units

FOLLOWERS_MAX = 100_000
_COUNT = re.compile(r"[0-9]{1,6}")
_RESOURCE = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_./]{0,315}[A-Za-z0-9])?")
_WHERE = f"metadata.annotations[{labels.FOLLOWERS}]"
_HINT = 'the number of pods and what each of them requests: "2 cpu=4,memory=8Gi"'

_SPARK_FLAGS = {
    "--num-executors": "spark.executor.instances",
    "--executor-cores": "spark.executor.cores",
    "--executor-memory": "spark.executor.memory",
}
_SPARK_SIZE = re.compile(r"([0-9]{1,12})([kmgtp]?)b?")
_MEBI = 1 << 20
_SPARK_UNITS = {"": _MEBI, "k": 1 << 10, "m": _MEBI, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}


@dataclass(frozen=True, slots=True)
class Followers:
    """``count`` pods, each with these ``requests``: pairs of resource and quantity, in order."""

    count: int
    requests: tuple[tuple[str, str], ...]

    @property
    def label(self) -> str:
        """Return the label of their slots."""
        return f"followers-{hashlib.sha256(repr(self.requests).encode()).hexdigest()[:8]}"

    def pod_spec(self, driver: Mapping[str, Any]) -> dict[str, Any]:
        """Return the spec of one of them. It is placed as ``driver`` (a pod spec) is."""
        return {"containers": [{"resources": {"requests": dict(self.requests)}}], **_placed(driver)}

    def fits(self, pod: Mapping[str, Any], driver: Mapping[str, Any]) -> bool:
        """Tell whether a pod needs no more than one of these slots, and is placed as its driver."""
        kept = {name: to_base_units(name, said, where=_WHERE) for name, said in self.requests}
        try:
            asked = raw_request(pod["spec"])
        except InvalidInput:
            return False
        asked.pop("pods")
        is_small = all(amount <= kept.get(name, 0) for name, amount in asked.items())
        return is_small and _placed(pod["spec"]) == _placed(driver)


def _placed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a spec says about its nodes, without the node that its release has named."""
    selector = {k: v for k, v in (spec.get("nodeSelector") or {}).items() if k != labels.HOSTNAME}
    affinity = dict(spec.get("affinity") or {})
    on_nodes = dict(affinity.pop("nodeAffinity", None) or {})
    required = on_nodes.pop("requiredDuringSchedulingIgnoredDuringExecution", None) or {}
    terms = required.get("nodeSelectorTerms") or []
    if any(one["key"] not in {NAME_KEY, labels.HOSTNAME} for one in _rules(terms)):
        on_nodes["requiredDuringSchedulingIgnoredDuringExecution"] = required
    affinity |= {"nodeAffinity": on_nodes} if on_nodes else {}
    said = {"nodeSelector": selector, "affinity": affinity, "tolerations": spec.get("tolerations")}
    return {key: value for key, value in said.items() if value}


def _rules(terms: list[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for term in terms:
        yield from term.get("matchFields") or ()
        yield from term.get("matchExpressions") or ()


def read_followers(pod: Mapping[str, Any]) -> Followers | None:
    """Read the annotation of a driver, or None if it has none.

    Raises
    ------
    InvalidInput
        It cannot be read. The error names the annotation.
    """
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(labels.FOLLOWERS)
    if text is None:
        return None
    count, _, rest = str(text).strip().partition(" ")
    requests: dict[str, str] = {}
    for part in rest.split(","):
        name, equals, quantity = part.strip().partition("=")
        if not equals or not _RESOURCE.fullmatch(name) or name in requests:
            raise InvalidInput("does not say what follows", where=_WHERE, value=text, hint=_HINT)
        parse_quantity(quantity, where=_WHERE)
        requests[name] = quantity
    if not _COUNT.fullmatch(count) or not 1 <= int(count) <= FOLLOWERS_MAX:
        hint = f"{_HINT}, with 1 to {FOLLOWERS_MAX} pods"
        raise InvalidInput("is no number of pods", where=_WHERE, value=text, hint=hint)
    return Followers(int(count), tuple(sorted(requests.items())))


def stored_followers(pod: Mapping[str, Any]) -> Followers | None:
    """Return what a stored pod says about its followers. None if an edit has made it unreadable."""
    try:
        return read_followers(pod)
    except InvalidInput:
        return None


# --- what the arguments of a driver tell ----------------------------------------------------------


def learn_followers(pod: Mapping[str, Any]) -> str:
    """Return the annotation for a driver without one, as its arguments tell. Else empty."""
    meta = pod.get("metadata") or {}
    if (meta.get("labels") or {}).get(labels.SPARK_ROLE) != "driver":
        return ""
    words = [
        str(word)
        for one in (pod.get("spec") or {}).get("containers") or ()
        for word in (*(one.get("command") or ()), *(one.get("args") or ()))
    ]
    conf = dict(_spark_conf(words))
    counts = [conf.get("spark.executor.instances", "0")]
    if conf.get("spark.dynamicAllocation.enabled") == "true":
        names = ("minExecutors", "initialExecutors")
        counts += [conf.get(f"spark.dynamicAllocation.{name}", "0") for name in names]
    count = max((int(one) for one in counts if _COUNT.fullmatch(one)), default=0)
    cpu = conf.get("spark.executor.cores", "1")
    cpu = conf.get("spark.kubernetes.executor.request.cores", cpu)
    is_jvm = not any(word.endswith((".py", ".R")) for word in words)
    text = f"{count} cpu={cpu},memory={_spark_memory(conf, is_jvm=is_jvm)}"
    # Spark itself refuses what it cannot read.
    told = {"metadata": {"annotations": {labels.FOLLOWERS: text}}}
    return text if stored_followers(told) is not None else ""


def _spark_conf(words: list[str]) -> Iterator[tuple[str, str]]:
    for word, following in zip(words, [*words[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        value = value if equals else following
        if flag in {"--conf", "-c"}:
            key, _, said = value.partition("=")
            yield key.strip(), said.strip()
        elif flag in _SPARK_FLAGS:
            yield _SPARK_FLAGS[flag], value


def _spark_memory(conf: Mapping[str, str], *, is_jvm: bool) -> int:
    """Return the memory of an executor in bytes, or -1 if it cannot be read.

    Source of the sum: ``ResourceProfile`` and ``BasicExecutorFeatureStep`` of Spark 3 and 4.
    """

    def size(key: str, default: str) -> int:
        found = _SPARK_SIZE.fullmatch(conf.get(key, default).lower())
        return int(found[1]) * _SPARK_UNITS[found[2]] if found else -(1 << 62)

    memory = size("spark.executor.memory", "1g")
    factor = conf.get("spark.kubernetes.memoryOverheadFactor", "0.1" if is_jvm else "0.4")
    factor = conf.get("spark.executor.memoryOverheadFactor", factor)
    if not re.fullmatch(r"[0-9]{0,3}\.?[0-9]{1,6}", factor):
        return -1
    least = size("spark.executor.minMemoryOverhead", "384m")
    overhead = max(int(memory * float(factor)), least)
    if "spark.executor.memoryOverhead" in conf:
        overhead = size("spark.executor.memoryOverhead", "0")
    others = size("spark.executor.pyspark.memory", "0")
    if conf.get("spark.memory.offHeap.enabled") == "true":
        others += size("spark.memory.offHeap.size", "0")
    return max(-1, memory + overhead + others)

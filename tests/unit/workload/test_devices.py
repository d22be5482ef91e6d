"""Devices by class: selectors read, devices counted, and never too few."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.workload.devices import (
    SHARED_MAX,
    DeviceAmounts,
    allocated_devices,
    count_devices,
    newest,
    read_class,
    read_slice,
    read_taint_rule,
)

DRIVER = "gpu.example.com"
IMPLICIT = "deviceclass.resource.kubernetes.io/gpu"


def device_class(*expressions: str, resource: str | None = "example.com/gpu") -> dict[str, Any]:
    selectors = [{"cel": {"expression": one}} for one in expressions]
    spec = {"selectors": selectors} | ({"extendedResourceName": resource} if resource else {})
    return {"metadata": {"name": "gpu"}, "spec": spec}


def device(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, **more}


def device_slice(*devices: dict[str, Any], generation: int = 1, **spec: Any) -> dict[str, Any]:
    pool = {"name": "n0", "generation": generation, "resourceSliceCount": 1}
    return {
        "metadata": {"name": "s"},
        "spec": {"driver": DRIVER, "pool": pool, "nodeName": "n0", "devices": devices, **spec},
    }


A100 = {"model": {"string": "a100"}, "index": {"int": 3}, "mig": {"bool": False}}
H100 = {"model": {"string": "h100"}, f"{DRIVER}/index": {"int": -4}, "mig": {"bool": True}}
DEVICES = read_slice(
    device_slice(device("a", attributes=A100), device("b", attributes=H100), device("c"))
).devices


@pytest.mark.parametrize(
    ("expression", "names", "is_counted"),
    [
        ("device.driver == 'gpu.example.com'", "abc", True),
        ('  (device.driver   ==\n"gpu.example.com")  ', "abc", True),
        ("device.driver == 'other.example.com'", "", True),
        ("device.attributes['gpu.example.com'].model == 'a100'", "a", True),
        ('device.attributes["gpu.example.com"].index == -4', "b", True),
        ("device.attributes['gpu.example.com'].mig", "b", True),
        ("device.attributes['gpu.example.com'].mig == false", "a", True),
        ("device.attributes['gpu.example.com'].index == '3'", "", True),
        (
            (
                "device.driver == 'gpu.example.com' &&"
                " device.attributes['gpu.example.com'].model == 'h100'"
            ),
            "b",
            True,
        ),
        ("device.attributes['gpu.example.com'].model.startsWith('a')", "a", True),
        (
            (
                "device.attributes['gpu.example.com'].model == 'a100' ||"
                " device.attributes['gpu.example.com'].model == 'h100'"
            ),
            "ab",
            True,
        ),
        ("device.attributes['gpu.example.com'].model in ['h100', 'h200']", "b", True),
        ("!(device.driver == 'gpu.example.com')", "", True),
        ("device.driver == 'x' ? true : device.driver != 'x'", "abc", True),
        ("device.driver == 'a && b'", "", True),
        ("has(device.attributes['gpu.example.com'].model)", "ab", True),
        ("'model' in device.attributes['other.example.com']", "", True),
        ("device.allowMultipleAllocations == false", "abc", True),
        ("true", "abc", True),
        # What cannot be evaluated leaves no device out.
        ("device.attributes['gpu.example.com'].?model.orValue('') == 'a100'", "abc", False),
        ("cel.bind(d, device.driver, d == 'x')", "abc", True),
        ("device.driver", "abc", True),
        ("device.driver == ", "abc", False),
        ("", "abc", False),
        ("true && " * 600 + "false", "abc", False),
        ("[1].all(x, [1].all(y, [1].all(z, false)))", "abc", False),
    ],
)
def test_selectors(expression: str, names: str, is_counted: bool) -> None:
    found = read_class(device_class(expression))
    assert "".join(one.id[2] for one in DEVICES if found.may_have(one)) == names
    assert (found.doubt == "") == is_counted


SIZED = read_slice(
    device_slice(
        device(
            "small",
            attributes={"version": {"version": "2.0.0-rc.1"}},
            capacity={"memory": {"value": "40Gi"}},
        ),
        device(
            "large",
            attributes={"version": {"version": "2.10.0"}},
            capacity={"memory": {"value": "80Gi"}, f"{DRIVER}/cores": {"value": "500m"}},
        ),
        device("vast", capacity={"memory": {"value": "10E"}}),
        device("odd", attributes={"version": {"version": "two"}}),
    )
).devices


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("MEMORY.compareTo(quantity('64Gi')) >= 0", "large vast"),
        ("MEMORY.isGreaterThan(quantity('40960Mi'))", "large vast"),
        ("MEMORY.isLessThan(quantity('41Gi'))", "small vast"),
        ("MEMORY.compareTo(semver('1.0.0')) == 0", "small large vast"),
        ("device.capacity['gpu.example.com'].cores.compareTo(quantity('0.5')) == 0", "large"),
        ("VERSION.compareTo(semver('2.9.0')) > 0", "large odd"),
        ("VERSION.isLessThan(semver('2.0.0'))", "small odd"),
        ("VERSION.isGreaterThan(semver('2.0.0-rc.0')) && VERSION.minor() < 9", "small odd"),
        ("isQuantity('1x') || isSemver('1.2')", ""),
    ],
)
def test_quantities_and_versions_are_compared_as_kubernetes_does(
    expression: str, names: str
) -> None:
    """A value that cannot be compared leaves its device in. A missing one leaves it out."""
    expression = expression.replace("MEMORY", f"device.capacity['{DRIVER}'].memory")
    found = read_class(
        device_class(expression.replace("VERSION", f"device.attributes['{DRIVER}'].version"))
    )
    assert [one.id[2] for one in SIZED if found.may_have(one)] == names.split()


def test_a_device_in_doubt_is_not_known_to_be_taken() -> None:
    one = read_class(
        device_class(f"device.capacity['{DRIVER}'].memory.compareTo(quantity('64Gi')) >= 0")
    )
    taken = {device.id for device in SIZED}
    amounts = count_devices([one], SIZED, taken)
    assert (amounts.capacity["example.com/gpu"], dict(amounts.unusable)) == (2, {})
    amounts = count_devices([one], SIZED[:2], taken)
    assert amounts.unusable["example.com/gpu"] == 1


def test_all_selectors_of_a_class_hold() -> None:
    both = read_class(
        device_class(
            "device.driver == 'gpu.example.com'",
            "device.attributes['gpu.example.com'].model == 'a100'",
        )
    )
    assert [one.id[2] for one in DEVICES if both.may_have(one)] == ["a"]
    assert read_class(device_class()).may_have(DEVICES[0]), "a class without selectors has all"


def test_a_class_serves_its_name_and_the_one_that_it_gives() -> None:
    assert read_class(device_class()).resources == (IMPLICIT, "example.com/gpu")
    assert read_class(device_class(resource=None)).resources == (IMPLICIT,)


def test_whole_devices_are_counted_with_those_that_are_taken_or_tainted() -> None:
    """A tainted device is one of the node, though no new pod gets it. An effect of None is none."""
    taints = [{"key": "k", "effect": "NoSchedule"}]
    harmless = [{"key": "k", "effect": "None"}]
    found = read_slice(
        device_slice(
            device("a"), device("b", taints=taints), device("c", taints=harmless), device("d")
        )
    )
    classes = [read_class(device_class("device.driver == 'gpu.example.com'"))]
    amounts = count_devices(classes, found.devices, {(DRIVER, "n0", "d")})
    both = {IMPLICIT, "example.com/gpu"}
    assert amounts == DeviceAmounts(dict.fromkeys(both, 4), dict.fromkeys(both, 2))


@pytest.mark.parametrize(
    "more",
    [
        {"allowMultipleAllocations": True},
        {"consumesCounters": [{"counterSet": "x", "counters": {}}]},
    ],
)
def test_what_cannot_be_counted_is_never_counted_too_low(more: dict[str, Any]) -> None:
    """Of a device that claims share, or that shares its parts, none is known to be taken."""
    found = read_slice(device_slice(device("a", **more)))
    amounts = count_devices([read_class(device_class())], found.devices, {(DRIVER, "n0", "a")})
    expected = SHARED_MAX if "allowMultipleAllocations" in more else 1
    assert amounts.capacity["example.com/gpu"] == expected
    assert not amounts.unusable


def test_nothing_is_known_to_be_taken_of_an_uncertain_class() -> None:
    uncertain = read_class(device_class("device.driver.reversed() == 'x'"))
    amounts = count_devices([uncertain], DEVICES, {DEVICES[0].id})
    assert (amounts.capacity["example.com/gpu"], dict(amounts.unusable)) == (3, {})


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    old = read_slice(device_slice(device("a"), generation=1))
    new = read_slice(device_slice(device("b"), device("c"), generation=2))
    assert [one.id[2] for one in newest([old, new], {old.pool: 2})] == ["b", "c"]


def test_slices_that_several_nodes_reach() -> None:
    assert read_slice(device_slice(nodeName=None, allNodes=True)).node is None
    assert read_slice(device_slice(perDeviceNodeSelection=True)).node is None


def test_claims_hold_devices() -> None:
    """Those of an extended resource are counted by the pod that asks for it."""
    results = [
        {"driver": DRIVER, "pool": "n0", "device": "a"},
        {"driver": DRIVER, "pool": "n0", "device": "b", "adminAccess": True},
    ]
    claim: dict[str, Any] = {
        "metadata": {"name": "c"},
        "status": {"allocation": {"devices": {"results": results}}},
    }
    assert allocated_devices(claim) == [(DRIVER, "n0", "a")]
    notes = {"resource.kubernetes.io/extended-resource-claim": "true"}
    assert allocated_devices({**claim, "metadata": {"annotations": notes}}) == []
    assert allocated_devices({"metadata": {}, "status": {}}) == []


def taint_rule(effect: str = "NoSchedule", **selector: str) -> dict[str, Any]:
    taint = {"key": "example.com/broken", "effect": effect}
    return {"metadata": {"name": "r"}, "spec": {"deviceSelector": selector, "taint": taint}}


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        (taint_rule(), "abc"),
        (taint_rule(driver=DRIVER), "abc"),
        (taint_rule(driver="other.example.com"), ""),
        (taint_rule(pool="n0", device="b"), "b"),
        (taint_rule(pool="n1", device="b"), ""),
        (taint_rule("NoExecute", device="c"), "c"),
        (taint_rule("None", device="c"), ""),
        (taint_rule(device="a", deviceClassName="gpu"), ""),
        ({"spec": {"taint": {"key": "k", "effect": "NoSchedule"}}}, ""),
        ({}, ""),
    ],
)
def test_a_rule_taints_the_devices_that_it_selects(rule: dict[str, Any], names: str) -> None:
    """They are part of the node still, so nothing is called impossible because of them."""
    found = read_taint_rule(rule)
    tainted = {one.id for one in DEVICES if found is not None and found.meets(one.id)}
    assert "".join(sorted(device[2] for device in tainted)) == names
    one = read_class(device_class("true"))
    amounts = count_devices([one], DEVICES, set(), tainted)
    assert amounts.capacity["example.com/gpu"] == 3
    assert amounts.unusable.get("example.com/gpu", 0) == len(names)


def test_a_tainted_device_that_claims_share_is_gone_for_all_of_them() -> None:
    """A claim that holds it leaves it to others, a taint does not."""
    taints = [{"key": "k", "effect": "NoExecute"}]
    for taint in ([], taints):
        shared = read_slice(
            device_slice(device("a", allowMultipleAllocations=True, taints=taint))
        ).devices
        amounts = count_devices([read_class(device_class("true"))], shared, {shared[0].id})
        gone = amounts.unusable.get("example.com/gpu", 0)
        assert gone == (SHARED_MAX if taint else 0)


@pytest.mark.parametrize(
    ("told", "takes"),
    [
        ({}, ()),
        ({"cpu": {"mapping": {"deviceMultiplier": "8"}}}, (("cpu", 8000),)),
        ({"cpu": {"overhead": {"perPod": "1", "perContainer": "500m"}}}, (("cpu", 1500),)),
        ({"cpu": {"mapping": {"capacityKey": "x/cores", "capacityMultiplier": "1"}}}, None),
    ],
)
def test_what_a_device_takes_of_its_node(told: dict[str, Any], takes: Any) -> None:
    """``nodeAllocatableResources`` of a ResourceSlice (1.37)."""
    device = {"name": "d", "nodeAllocatableResources": told}
    spec = {"driver": "example.com", "pool": {"name": "p"}, "nodeName": "n", "devices": [device]}
    (found,) = read_slice({"metadata": {"name": "s"}, "spec": spec}).devices
    assert found.takes == takes

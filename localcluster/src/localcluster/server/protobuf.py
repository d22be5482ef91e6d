"""Reads the protobuf bodies of kubectl: ``create job``, ``create token``, ``auth can-i``.

``request`` calls it for ``application/vnd.kubernetes.protobuf``. Typed clients write such bodies
without negotiation. Answers are always JSON, which all of them accept. Only what kubectl can build
from its command line is known here, because manifests are sent as JSON. Any other message or field
is refused with its name and number, and never dropped.

Wire format: https://protobuf.dev/programming-guides/encoding, with the Kubernetes envelope
(``k8s\\0``, then ``runtime.Unknown``). Field numbers are those of the published API.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from localcluster.obj import Obj
from localcluster.types.refusals import StatusError

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"

# name=number:type. An asterisk marks repeated fields. "map" is string to string.
_MESSAGES = """\
ObjectMeta name=1:string generateName=2:string namespace=3:string selfLink=4:string uid=5:string \
    resourceVersion=6:string generation=7:int creationTimestamp=8:Time deletionTimestamp=9:Time \
    deletionGracePeriodSeconds=10:int labels=11:map annotations=12:map \
    ownerReferences=13:OwnerReference* finalizers=14:string*
OwnerReference kind=1:string name=3:string uid=4:string apiVersion=5:string controller=6:bool \
    blockOwnerDeletion=7:bool
LabelSelector matchLabels=1:map matchExpressions=2:LabelSelectorRequirement*
LabelSelectorRequirement key=1:string operator=2:string values=3:string*
DeleteOptions gracePeriodSeconds=1:int preconditions=2:Preconditions orphanDependents=3:bool \
    propagationPolicy=4:string dryRun=5:string*
Preconditions uid=1:string resourceVersion=2:string
Namespace metadata=1:ObjectMeta spec=2:NamespaceSpec status=3:NamespaceStatus
NamespaceSpec finalizers=1:string*
NamespaceStatus phase=1:string
ConfigMap metadata=1:ObjectMeta data=2:map binaryData=3:bytesmap immutable=4:bool
Secret metadata=1:ObjectMeta data=2:bytesmap type=3:string stringData=4:map immutable=5:bool
ServiceAccount metadata=1:ObjectMeta automountServiceAccountToken=4:bool
Binding metadata=1:ObjectMeta target=2:ObjectReference
ObjectReference kind=1:string namespace=2:string name=3:string uid=4:string apiVersion=5:string \
    resourceVersion=6:string fieldPath=7:string
Job metadata=1:ObjectMeta spec=2:JobSpec status=3:Empty
JobSpec parallelism=1:int completions=2:int activeDeadlineSeconds=3:int selector=4:LabelSelector \
    manualSelector=5:bool template=6:PodTemplateSpec backoffLimit=7:int \
    ttlSecondsAfterFinished=8:int completionMode=9:string suspend=10:bool
Deployment metadata=1:ObjectMeta spec=2:DeploymentSpec status=3:Empty
DeploymentSpec replicas=1:int selector=2:LabelSelector template=3:PodTemplateSpec \
    strategy=4:DeploymentStrategy minReadySeconds=5:int revisionHistoryLimit=6:int paused=7:bool \
    progressDeadlineSeconds=9:int
DeploymentStrategy type=1:string rollingUpdate=2:RollingUpdateDeployment
RollingUpdateDeployment maxUnavailable=1:IntOrString maxSurge=2:IntOrString
PodTemplateSpec metadata=1:ObjectMeta spec=2:PodSpec
PodSpec containers=2:Container* restartPolicy=3:string terminationGracePeriodSeconds=4:int \
    activeDeadlineSeconds=5:int dnsPolicy=6:string nodeSelector=7:map serviceAccountName=8:string \
    serviceAccount=9:string nodeName=10:string hostNetwork=11:bool hostPID=12:bool hostIPC=13:bool \
    securityContext=14:Empty hostname=16:string subdomain=17:string schedulerName=19:string \
    automountServiceAccountToken=21:bool tolerations=22:Toleration* priorityClassName=24:string \
    priority=25:int enableServiceLinks=30:bool schedulingGates=38:PodSchedulingGate*
PodSchedulingGate name=1:string
Toleration key=1:string operator=2:string value=3:string effect=4:string tolerationSeconds=5:int
Container name=1:string image=2:string command=3:string* args=4:string* workingDir=5:string \
    ports=6:ContainerPort* env=7:EnvVar* resources=8:ResourceRequirements \
    terminationMessagePath=13:string imagePullPolicy=14:string stdin=16:bool stdinOnce=17:bool \
    tty=18:bool terminationMessagePolicy=20:string
ContainerPort name=1:string hostPort=2:int containerPort=3:int protocol=4:string hostIP=5:string
EnvVar name=1:string value=2:string
ResourceRequirements limits=1:quantities requests=2:quantities
PriorityClass metadata=1:ObjectMeta value=2:int globalDefault=3:bool description=4:string \
    preemptionPolicy=5:string
PodDisruptionBudget metadata=1:ObjectMeta spec=2:PodDisruptionBudgetSpec status=3:Empty
PodDisruptionBudgetSpec minAvailable=1:IntOrString selector=2:LabelSelector \
    maxUnavailable=3:IntOrString
Eviction metadata=1:ObjectMeta deleteOptions=2:DeleteOptions
Role metadata=1:ObjectMeta rules=2:PolicyRule*
ClusterRole metadata=1:ObjectMeta rules=2:PolicyRule*
PolicyRule verbs=1:string* apiGroups=2:string* resources=3:string* resourceNames=4:string* \
    nonResourceURLs=5:string*
RoleBinding metadata=1:ObjectMeta subjects=2:Subject* roleRef=3:RoleRef
ClusterRoleBinding metadata=1:ObjectMeta subjects=2:Subject* roleRef=3:RoleRef
Subject kind=1:string apiGroup=2:string name=3:string namespace=4:string
RoleRef apiGroup=1:string kind=2:string name=3:string
TokenRequest metadata=1:ObjectMeta spec=2:TokenRequestSpec status=3:Empty
TokenRequestSpec audiences=1:string* boundObjectRef=3:BoundObjectReference expirationSeconds=4:int
BoundObjectReference kind=1:string apiVersion=2:string name=3:string uid=4:string
SelfSubjectReview metadata=1:ObjectMeta status=2:Empty
SelfSubjectAccessReview metadata=1:ObjectMeta spec=2:SelfSubjectAccessReviewSpec status=3:Empty
SelfSubjectAccessReviewSpec resourceAttributes=1:ResourceAttributes \
    nonResourceAttributes=2:NonResourceAttributes
ResourceAttributes namespace=1:string verb=2:string group=3:string version=4:string \
    resource=5:string subresource=6:string name=7:string
NonResourceAttributes path=1:string verb=2:string
SelfSubjectRulesReview metadata=1:ObjectMeta spec=2:SelfSubjectRulesReviewSpec status=3:Empty
SelfSubjectRulesReviewSpec namespace=1:string
"""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    type: str
    is_repeated: bool


@cache
def _messages() -> dict[str, dict[int, _Field]]:
    table: dict[str, dict[int, _Field]] = {"Empty": {}}
    for line in _MESSAGES.strip().splitlines():
        name, *fields = line.split()
        table[name] = {}
        for text in fields:
            field_name, _, rest = text.partition("=")
            number, _, kind = rest.partition(":")
            table[name][int(number)] = _Field(field_name, kind.rstrip("*"), kind.endswith("*"))
    return table


def _refused(message: str) -> StatusError:
    return StatusError(
        415,
        "UnsupportedMediaType",
        f"the embedded cluster reads only simple protobuf bodies: {message}; "
        "send JSON (kubectl: --dry-run=client -o json | kubectl create -f -)",
    )


def decode_body(raw: bytes) -> Obj:
    """Return the object of an enveloped body.

    Raises 415 for an unknown message or field, 400 for a broken one.
    """
    if not raw.startswith(_MAGIC):
        raise StatusError(
            400, "BadRequest", "provided data does not appear to be a protobuf message"
        )
    try:
        envelope = dict(_fields(raw[len(_MAGIC) :]))
        meta = {number: _text(value) for number, value in _fields(_bytes(envelope.get(1, b"")))}
        kind = meta.get(2, "")
        if kind not in _messages():
            raise _refused(f"{kind or 'the kind'} is not known")
        obj: Obj = {"apiVersion": meta.get(1, ""), "kind": kind}
        return obj | _message(_bytes(envelope.get(2, b"")), kind)
    except (IndexError, ValueError, TypeError) as error:
        raise StatusError(400, "BadRequest", f"broken protobuf message: {error}") from error


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) of one message: bytes with a length, else integers."""
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        number, wire = key >> 3, key & 7
        value: int | bytes
        if wire == 0:
            value, at = _varint(raw, at)
        elif wire == 2:
            size, at = _varint(raw, at)
            value = raw[at : at + size]
            if len(value) != size:
                raise ValueError("unexpected end of message")
            at += size
        else:
            raise ValueError(f"wire type {wire} does not occur in API objects")
        yield number, value


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _message(raw: bytes, name: str) -> Obj:
    fields = _messages()[name]
    result: Obj = {}
    for number, value in _fields(raw):
        field = fields.get(number)
        if field is None:
            if name == "Empty" or value in (b"", 0):
                continue  # Go writes unset fields of some messages too.
            raise _refused(f"field {number} of {name} is not known")
        decoded = _value(value, field.type)
        if field.type in ("map", "bytesmap", "quantities"):
            result.setdefault(field.name, {}).update(decoded)
        elif field.is_repeated:
            result.setdefault(field.name, []).append(decoded)
        elif decoded is not None:
            result[field.name] = decoded
    return result


def _value(value: int | bytes, kind: str) -> Any:
    if kind == "int":
        number = _int(value)
        return number - (1 << 64) if number >= 1 << 63 else number
    if kind == "bool":
        return bool(_int(value))
    raw = _bytes(value)
    if kind == "string":
        return raw.decode()
    if kind in ("map", "bytesmap", "quantities"):
        return _pair(raw, kind)
    if kind == "Time":
        found = dict(_fields(raw))
        return _time(_int(found[1])) if 1 in found else None
    if kind == "IntOrString":
        found = dict(_fields(raw))
        return _text(found.get(3, b"")) if found.get(1) else _int(found.get(2, 0))
    return _message(raw, kind)


def _pair(raw: bytes, kind: str) -> Obj:
    found = dict(_fields(raw))
    key, value = _text(found.get(1, b"")), _bytes(found.get(2, b""))
    if kind == "bytesmap":
        return {key: base64.b64encode(value).decode()}
    if kind == "quantities":
        return {key: _text(dict(_fields(value)).get(1, b"0"))}
    return {key: value.decode()}


def _time(wall_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall_s))


def _int(value: int | bytes) -> int:
    if isinstance(value, int):
        return value
    raise ValueError("a number is expected")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    raise ValueError("a length-delimited field is expected")


def _text(value: int | bytes) -> str:
    return _bytes(value).decode()

"""Build the programs of a Kubernetes control plane from their public Go modules.

    python tests/control_plane_build/build.py 1.37.2     also: make control-plane VERSION=1.37.2

The version is a release (``1.37.2``), a pre-release (``1.38.0-beta.0``) or a minor (``1.37``: its
newest release). Each version is one Go module in the cache of the user. It requires
``k8s.io/kubernetes`` and replaces its staging modules by those of the same minor. etcd has the
version that Kubernetes itself names. Nothing of them is stored in this repository.

The last line of the output is ``KUBEBUILDER_ASSETS=FOLDER``. All else goes to stderr. It needs Go
and the standard library. It must not import the product: it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

KUBERNETES = "k8s.io/kubernetes"
PROGRAMS = {
    "etcd": "go.etcd.io/etcd/server/v3",
    **{
        name: f"{KUBERNETES}/cmd/{name}"
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
    },
}
"""Each program and the Go package that it is built from."""
_VERSION = re.compile(r"v?(1\.\d+)(\.\d+(?:-[a-z]+\.\d+)?)?")
_STAGING = re.compile(r"^\s*(k8s\.io/[a-z0-9-]+) (?:v0\.0\.0$|=> \./staging/)", re.MULTILINE)
_GO = re.compile(r"^go (\d+\.\d+)", re.MULTILINE)


class BuildFailed(RuntimeError):
    """The programs cannot be built here. The message says why and what helps."""


def parse_version(text: str) -> tuple[str, bool]:
    """Return a version without its ``v``, and whether it names one release.

    Raises
    ------
    BuildFailed
        It is no version of Kubernetes.
    """
    found = _VERSION.fullmatch(text)
    if found is None:
        hint = "Fix: give a release such as 1.37.2, or a minor such as 1.37"
        raise BuildFailed(f"VERSION: {text!r} is no version of Kubernetes. {hint}")
    return f"{found[1]}{found[2] or ''}", found[2] is not None


def newest_of(minor: str, versions: Sequence[str]) -> str:
    """Return the newest release of a minor. Pre-releases do not count.

    Raises
    ------
    BuildFailed
        There is none.
    """
    patches = [re.fullmatch(rf"v{re.escape(minor)}\.(\d+)", one) for one in versions]
    known = [int(found[1]) for found in patches if found]
    if not known:
        last = ", ".join(versions[-3:]) or "none"
        raise BuildFailed(f"VERSION: the module proxy has no release of {minor}. Its last: {last}")
    return f"{minor}.{max(known)}"


def module_text(version: str, go_mod: str) -> str:
    """Return the ``go.mod`` that builds a version. ``go_mod`` is that of Kubernetes itself."""
    minor_patch = version.partition(".")[2]
    staging = sorted({found[1] for found in _STAGING.finditer(go_mod)})
    go = _GO.search(go_mod)
    replaced = "\n".join(f"\t{one} => {one} v0.{minor_patch}" for one in staging)
    return (
        f"module controlplane\n\ngo {go[1] if go else '1.26'}\n\n"
        f"require {KUBERNETES} v{version}\n\nreplace (\n{replaced}\n)\n"
    )


def link_flags(version: str) -> str:
    """Return the linker's flags: without symbols, and with the version that programs report."""
    major, minor, *_ = version.split(".")
    stamps = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    stamps["gitTreeState"] = "clean"
    place = "k8s.io/component-base/version"
    return " ".join(["-s -w", *(f"-X {place}.{name}={value}" for name, value in stamps.items())])


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of all versions, outside the tree."""
    base = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "/root")) / ".cache"
    return Path(base) / "fluxqueue" / "control-planes"


def build(text: str, folder: Path) -> Path:
    """Build what is missing of a version in ``folder``. Return the folder of its programs.

    Raises
    ------
    BuildFailed
        Go is absent, a module cannot be had, or a program does not compile.
    """
    version, is_release = parse_version(text)
    if is_release and _is_complete(folder / version / "bin"):
        return folder / version / "bin"  # before Go is asked for: the programs need none
    if shutil.which("go") is None:
        hint = "Fix: install Go 1.26 or newer (https://go.dev/dl/), or add its bin/ to PATH"
        raise BuildFailed(f"go is not on PATH, and the programs are built from source. {hint}")
    if not is_release:
        found = _go(["list", "-m", "-versions", "-json", KUBERNETES], folder)
        version = newest_of(version, json.loads(found).get("Versions") or ())
    module, programs = folder / version / "module", folder / version / "bin"
    if _is_complete(programs):
        return programs
    _tell(f"reading the modules of Kubernetes {version} ...")
    there = json.loads(_go(["mod", "download", "-json", f"{KUBERNETES}@v{version}"], folder))
    go_mod = Path(there["GoMod"]).read_text(encoding="utf-8")
    module.mkdir(parents=True, exist_ok=True)
    programs.mkdir(exist_ok=True)
    (module / "go.mod").write_text(module_text(version, go_mod), encoding="utf-8")
    for name, package in PROGRAMS.items():
        if os.access(programs / name, os.X_OK):
            continue
        _tell(f"building {name} {version} (minutes, the first time) ...")
        part = programs / f".{name}"
        flags = ["-trimpath", "-ldflags", link_flags(version), "-o", str(part)]
        _go(["build", *flags, package], module)
        part.replace(programs / name)  # whole or absent, also if a build is interrupted
    return programs


def _is_complete(programs: Path) -> bool:
    return all(os.access(programs / name, os.X_OK) for name in PROGRAMS)


def _go(arguments: Sequence[str], folder: Path) -> str:
    """Run Go in ``folder`` at low priority and return its output."""
    folder.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "GOFLAGS": "-mod=mod", "GOWORK": "off", "CGO_ENABLED": "0"}
    done = subprocess.run(
        ["nice", "-n", "10", "go", *arguments],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        # `mod download -json` reports a missing version on stdout.
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        hint = "Fix: check VERSION, and GOPROXY (`go env GOPROXY`) for a proxy that has the module"
        raise BuildFailed(f"go {' '.join(arguments[:2])} failed:\n{said}\n{hint}")
    return done.stdout


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Build a version and print the variable that names its folder."""
    parser = argparse.ArgumentParser(
        prog="build.py", description="build a Kubernetes control plane from its Go modules"
    )
    parser.add_argument("version", help="1.37.2, 1.38.0-beta.0, or 1.37 for its newest release")
    parser.add_argument("--into", type=Path, default=cache_folder(), metavar="FOLDER")
    args = parser.parse_args(argv)
    try:
        print(f"KUBEBUILDER_ASSETS={build(args.version, args.into)}")
    except BuildFailed as error:
        _tell(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Make the krew plugin of a release: an archive and its manifest.

    .ci/krew.py 0.2.0 dist       read the wheel in dist/, write both files beside it

``make krew`` and the release workflow call it. The archive holds a launcher, the wheel and the lock
file of the users' command line. It is the same for all platforms, and has the same bytes whenever
it is made from the same files. Only the standard library is needed.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RELEASES = "https://github.com/converged-computing/fluxqueue/releases/download"
LAUNCHER = "kubectl-fluxqueue"
FILES = {
    LAUNCHER: ROOT / ".ci" / LAUNCHER,
    "requirements.lock": ROOT / "requirements" / "cli.lock",
    "LICENSE": ROOT / "LICENSE",
}
"""Name in the archive to file of the tree. The wheel is added."""
DESCRIPTION = """\
Shows the jobs and nodes of a cluster with fluxqueue, says why a job waits and when it starts, and
submits, holds, moves and cancels jobs. It needs only a kubeconfig.
"""
CAVEATS = """\
The first run installs Python packages beside the plugin. It needs Python 3.11 or newer and a
package index.
"""


def archive(wheel: Path) -> bytes:
    """Return the plugin's files as tar.gz, without times, users or other traces of this machine."""
    whole = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=whole, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name, file in sorted({**FILES, wheel.name: wheel}.items()):
            content = file.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755 if name == LAUNCHER else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return whole.getvalue()


def manifest(version: str, packed: bytes) -> dict[str, object]:
    """Return the manifest of that archive, as krew reads it."""
    systems = {"key": "os", "operator": "In", "values": ["darwin", "linux"]}
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "fluxqueue"},
        "spec": {
            "version": f"v{version}",
            "homepage": "https://github.com/converged-computing/fluxqueue",
            "shortDescription": "Show, submit and steer queued jobs",
            "description": DESCRIPTION,
            "caveats": CAVEATS,
            "platforms": [
                {
                    "selector": {"matchExpressions": [systems]},
                    "uri": f"{RELEASES}/v{version}/{archive_name(version)}",
                    "sha256": hashlib.sha256(packed).hexdigest(),
                    "files": [{"from": "*", "to": "."}],
                    "bin": LAUNCHER,
                }
            ],
        },
    }


def archive_name(version: str) -> str:
    """Return the name of the archive in a release."""
    return f"{LAUNCHER}-{version}.tar.gz"


def main(arguments: list[str]) -> int:
    """Write both files and return the exit code."""
    parser = argparse.ArgumentParser(description="Make the krew plugin of a release.")
    parser.add_argument("version", help="X.Y.Z, as in pyproject.toml")
    parser.add_argument("folder", type=Path, help="where the wheel is, and the files will be")
    asked = parser.parse_args(arguments)
    wheel = asked.folder / f"fluxqueue_k8s-{asked.version}-py3-none-any.whl"
    if not wheel.is_file():
        parser.error(f"{wheel} is missing. Fix: make wheel")
    packed = archive(wheel)
    (asked.folder / archive_name(asked.version)).write_bytes(packed)
    # JSON is YAML, and needs no library.
    text = json.dumps(manifest(asked.version, packed), indent=2)
    (asked.folder / "fluxqueue.yaml").write_text(f"{text}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

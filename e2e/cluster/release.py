"""Brings images to a registry of the user's: built on a base image that cannot change, and signed.

A base image is named by digest, which the Dockerfile writes into a label. `cosign` signs the digest that the
registry got, with $COSIGN_KEY, or by its keyless flow. A variable waives either demand, and the log says so.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from e2e.cluster.base import ClusterError, Progress, run, silent, which
from e2e.cluster.images import PUSH_TIMEOUT_S, buildah, docker_answers, reference

BASE_LABEL = "org.opencontainers.image.base.name"
UNPINNED, UNSIGNED = "ALLOW_UNPINNED_BASE", "ALLOW_UNSIGNED"
SIGN_TIMEOUT_S = 300.0  # keyless: a person answers in a browser


def push_all(
    targets: Iterable[str],
    registry: str,
    *,
    tag: str = "dev",
    environ: Mapping[str, str] = os.environ,
    progress: Progress = silent,
) -> list[str]:
    """Push images that were built before, or none if one is refused; returns their names with digests."""
    names = {target: reference(target, tag=tag) for target in targets}
    docker = docker_answers()
    for name in names.values():
        _check_base(name, _label(name, docker=docker), environ, progress)
    cosign = _signer(environ, progress)
    pushed = []
    for target, local in names.items():
        remote = reference(target, registry=registry, tag=tag)
        progress(f"pushing {remote}")
        digest = _push(local, remote, docker=docker)
        exact = f"{remote.rpartition(':')[0]}@{digest}"
        if cosign:
            progress(f"signing {exact}")
            run([*cosign, exact], timeout_s=SIGN_TIMEOUT_S)
        pushed.append(exact)
    return pushed


def _check_base(name: str, base: str, environ: Mapping[str, str], progress: Progress) -> None:
    if re.search(r"@sha256:[0-9a-f]{64}$", base):
        return
    if environ.get(UNPINNED) != "1":
        raise ClusterError(
            f"{name} was built on {base or 'an unknown image'}, a name that may mean another image tomorrow",
            f"build it with BASE_IMAGE=NAME@sha256:DIGEST, or set {UNPINNED}=1",
        )
    progress(f"{name} is built on {base or 'an unknown image'}, which no digest names")


def _signer(environ: Mapping[str, str], progress: Progress) -> list[str | Path]:
    """The command before the name of an image; empty where signatures are waived."""
    if environ.get(UNSIGNED) == "1":
        progress(f"images are not signed: {UNSIGNED}=1")
        return []
    cosign = which("cosign")
    if cosign is None:
        raise ClusterError(
            "cosign is not installed, and images are signed", f"install it, or set {UNSIGNED}=1"
        )
    key = [f"--key={environ['COSIGN_KEY']}"] if environ.get("COSIGN_KEY") else []
    return [cosign, "sign", "--yes", *key]


def _label(name: str, *, docker: bool) -> str:
    if docker:
        form = f'{{{{index .Config.Labels "{BASE_LABEL}"}}}}'
        return run(["docker", "image", "inspect", f"--format={form}", name], timeout_s=30).stdout.strip()
    form = f'{{{{index .OCIv1.Config.Labels "{BASE_LABEL}"}}}}'
    return buildah("inspect", "--type=image", f"--format={form}", name, timeout_s=60).stdout.strip()


def _push(local: str, remote: str, *, docker: bool) -> str:
    """Push one image; returns the digest of what the registry has now."""
    if docker:
        run(["docker", "tag", local, remote], timeout_s=30)
        said = run(["docker", "push", remote], timeout_s=PUSH_TIMEOUT_S).stdout
        found = re.search(r"digest: (sha256:[0-9a-f]{64})", said)
        if found is None:
            raise ClusterError(f"docker named no digest of {remote}:\n{said[-500:]}")
        return found[1]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digest"
        buildah("push", f"--digestfile={file}", local, f"docker://{remote}", timeout_s=PUSH_TIMEOUT_S)
        return file.read_text().strip()

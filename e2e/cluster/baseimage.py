"""The image below ours: the usual one where a registry answers, else one of the distribution's packages."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
from pathlib import Path

from e2e.cluster import packages, paths
from e2e.cluster.base import ClusterError, Progress, run, silent
from e2e.cluster.locks import locked
from e2e.cluster.packages import Release, parse_release

REGISTRY_IMAGE = "docker.io/library/python:3.12-slim-bookworm"  # the Dockerfile's own default
REGISTRY_HOSTS = ("registry-1.docker.io", "auth.docker.io")
PROBE_TIMEOUT_S = 4.0
INCLUDE = (
    "python3,python3-venv,libpython3-dev,ca-certificates"  # headers: the engine image compiles against them
)
_CONTENTS = hashlib.sha256(INCLUDE.encode()).hexdigest()[:8]
# Releases whose Python is older than ours lend their archive to a newer one.
SUCCESSOR = {"jammy": "noble", "focal": "noble", "bullseye": "bookworm"}
HOST_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def base_release() -> Release:
    here = parse_release(Path("/etc/os-release").read_text())
    return Release(here.distribution, SUCCESSOR.get(here.codename, here.codename))


def local_reference() -> str:
    return f"tangram.local/base:{base_release().codename}-{_CONTENTS}"


def archive() -> Path:
    """The root file system of the local base image, as a tar: every builder can begin with that."""
    return paths.images_dir() / f"base-{base_release().codename}-{_CONTENTS}.tar"


def registry_answers() -> bool:
    """Can the default image be pulled here? Asks only whether its registry's hosts accept connections."""
    if os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy"):
        return True  # names are resolved by the proxy; the pull itself will tell
    try:
        for host in REGISTRY_HOSTS:
            socket.create_connection((host, 443), timeout=PROBE_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def ensure_base_image(progress: Progress = silent) -> str:
    """The reference to build on: ``$BASE_IMAGE``, the registry's, or the local one, made if need be."""
    if named := os.environ.get("BASE_IMAGE"):
        return named
    if archive().exists():
        return local_reference()
    if registry_answers():
        return REGISTRY_IMAGE
    with locked(paths.images_dir() / "base.lock", timeout_s=900, progress=progress):
        if not archive().exists():
            _make(progress)
    return local_reference()


def host_bundle() -> Path | None:
    """The certificate authorities that this machine trusts, a company's own among them."""
    named = (os.environ.get(variable) for variable in CERTIFICATE_VARIABLES)
    files = [Path(name) for name in named if name] + [HOST_BUNDLE]
    return next((path for path in files if path.is_file()), None)


def _make(progress: Progress) -> None:
    if os.geteuid() != 0:
        raise ClusterError(
            "no registry answers, and making a base image of this distribution's packages needs root",
            "run this with sudo, or set BASE_IMAGE to an image with Python 3.11+ that the builder can pull",
        )
    packages.ensure_packages(packages.BUILD, progress)
    release, root = base_release(), paths.images_dir() / "rootfs"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    progress(f"no registry answers: making a base image of {release.distribution} {release.codename}")
    options = ["--variant=minbase", f"--include={INCLUDE}", f"--components={_components(release)}"]
    log = run(
        packages.isolated(packages.need("debootstrap"), *options, release.codename, root, *_mirror(release)),
        timeout_s=900,
        env=packages.environment(),
        check=False,
    )
    if log.returncode != 0:
        raise ClusterError(
            f"debootstrap failed:\n{log.stdout[-2000:]}{log.stderr[-500:]}",
            "set BASE_IMAGE to an image with Python 3.11+ that the builder can pull",
        )
    if bundle := host_bundle():
        shutil.copyfile(bundle, root / HOST_BUNDLE.relative_to("/"))
    _pack(root, archive())
    shutil.rmtree(root)


def _components(release: Release) -> str:
    return "main,universe" if release.distribution == "ubuntu" else "main"


def _mirror(release: Release) -> list[str]:
    """The archive that the machine itself uses; none when its apt does not know the release."""
    shown = run(
        ["apt-get", "indextargets", "--format", "$(CODENAME) $(COMPONENT) $(SITE)", "Created-By: Packages"],
        timeout_s=60,
        check=False,
    ).stdout
    for line in shown.splitlines():
        words = line.split()
        if words[:2] == [release.codename, "main"] and len(words) == 3:
            return [words[2]]
    return []


def _pack(root: Path, target: Path) -> None:
    """Uncompressed: it never leaves this machine, and compressing takes longer than writing."""
    temporary = target.with_suffix(".tmp")
    run(
        [
            *("tar", "--create", "--file", temporary, "--directory", root, "--numeric-owner", "--sort=name"),
            *(
                "--exclude=./var/cache/apt/archives/*.deb",
                "--exclude=./var/lib/apt/lists/*",
                "--exclude=./dev/*",
            ),
            *("--exclude=./var/cache/apt/*.bin", "--exclude=./usr/share/doc/*", "."),
        ],
        timeout_s=300,
    )
    temporary.replace(target)

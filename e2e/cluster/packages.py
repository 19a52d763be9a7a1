"""What the distribution has ready: containerd, runc, CNI plugins, iptables, image tools, Prometheus.

Nothing is installed. Packages are downloaded with the distribution's own tools and signatures and unpacked
into the cache. So no maintainer script runs, no service starts now or at the next boot, Docker's packages
(which conflict with the distribution's containerd) stay, and removing the cache removes all of it. It even
works without root. What is on PATH already is used as it is.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import paths
from e2e.cluster.base import ClusterError, Progress, run, silent, tail, which, write_atomically
from e2e.cluster.locks import locked

# Program -> the package that has it, in Debian and Ubuntu alike.
PACKAGE_OF = {
    "containerd": "containerd",
    "ctr": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "runc": "runc",
    "bridge": "containernetworking-plugins",  # a CNI plugin, not iproute2's program of that name
    "iptables": "iptables",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "wget": "wget",
    "openssl": "openssl",
    "buildah": "buildah",
    "skopeo": "skopeo",
    "debootstrap": "debootstrap",
    "prometheus": "prometheus",
    "promtool": "prometheus",
}
NODE = ("containerd", "ctr", "containerd-shim-runc-v2", "runc", "bridge", "iptables", "ip", "openssl")
BUILD = ("buildah", "skopeo", "debootstrap", "wget")
METRICS = ("prometheus", "promtool")
ALL = (*NODE, *BUILD, *METRICS)

# Data files that programs above want besides the libraries they are linked with.
EXTRAS = {"buildah": ("golang-github-containers-common", "golang-github-containers-image")}
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
BIN_FOLDERS = ("usr/sbin", "usr/bin", "sbin", "bin")


def unpacked() -> Path:
    """The root folder of unpacked packages: ``usr/bin``, ``usr/lib``, …"""
    return paths.cache() / "packages" / "root"


def find(name: str) -> Path | None:
    """A program of the system, else of the unpacked packages; ``bridge`` is looked for among CNI plugins."""
    if PACKAGE_OF[name] == "containernetworking-plugins":
        folders = (*CNI_FOLDERS, unpacked() / "usr/lib/cni")
        return next((folder / name for folder in folders if (folder / name).exists()), None)
    if found := which(name):
        return found
    candidates = (unpacked() / folder / name for folder in BIN_FOLDERS)
    return next((path for path in candidates if path.exists()), None)


def need(name: str) -> Path:
    """The program, or an error that says how to get it."""
    found = find(name)
    if found is None:
        raise ClusterError(f"{name} is not there", "python3 -m e2e.cluster packages")
    return found


def environment() -> dict[str, str]:
    """What unpacked programs need in their environment to find each other, their libraries and their data."""
    root = unpacked()
    libraries = [root / "usr/lib" / f"{platform.machine()}-linux-gnu", root / "usr/lib", root / "lib"]
    folders = [str(root / folder) for folder in BIN_FOLDERS]
    values = {"PATH": ":".join([os.environ.get("PATH", "/usr/bin:/bin"), "/usr/sbin:/sbin", *folders])}
    if not root.exists():
        return values
    inherited = os.environ.get("LD_LIBRARY_PATH")
    values["LD_LIBRARY_PATH"] = ":".join([*([inherited] if inherited else []), *map(str, libraries)])
    if which("iptables") is None:
        values["XTABLES_LIBDIR"] = str(libraries[0] / "xtables")
    if which("debootstrap") is None:
        values["DEBOOTSTRAP_DIR"] = str(root / "usr/share/debootstrap")
    return values


def isolated(*command: str | Path) -> list[str]:
    """A command line in a mount namespace of its own: no mount of it stays, however it ends.

    Inside, the dynamic loader's cache knows the unpacked libraries: buildah starts itself again with an empty
    environment, so ``LD_LIBRARY_PATH`` does not reach it.
    """
    unshare = [str(need("unshare")), "--mount", "--propagation=private", "--fork", "--kill-child"]
    steps = []
    if _loader_cache().exists():
        steps.append('mount --bind "$0" /etc/ld.so.cache')
    if not paths.cache().is_relative_to("/var/lib"):
        # skopeo and buildah would start a folder there, if only to cache what they know of layers.
        steps.append("mount --bind /var/lib /var/lib && mount -o remount,bind,ro /var/lib")
    script = " && ".join([*steps, 'exec "$@"'])
    return [*unshare, "sh", "-c", script, str(_loader_cache()), *map(str, command)]


def missing(names: Iterable[str] = ALL) -> list[str]:
    """Programs of ``names`` that are nowhere yet."""
    return [name for name in names if find(name) is None]


def ensure_packages(names: Iterable[str] = ALL, progress: Progress = silent) -> None:
    """Download and unpack what is missing; safe to call from several processes at once."""
    if not (lacking := missing(names)):
        return
    roots = packages_of(lacking)
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ClusterError(
            f"missing: {', '.join(lacking)}; this is neither Debian nor Ubuntu, so nothing can be fetched",
            f"install them with your distribution's tools (packages named like {' '.join(roots)})",
        )
    with locked(paths.cache() / "packages.lock", timeout_s=900, progress=progress):
        if lacking := missing(names):
            _fetch(packages_of(lacking), progress)
    if lacking := missing(names):
        raise ClusterError(f"packages were unpacked, but {', '.join(lacking)} is not among them")


def packages_of(names: Iterable[str]) -> list[str]:
    """The packages to fetch for some programs, in a stable order.

    >>> packages_of(["promtool", "prometheus", "buildah"])
    ['buildah', 'golang-github-containers-common', 'golang-github-containers-image', 'prometheus']
    """
    packages = {PACKAGE_OF[name] for name in names}
    return sorted(packages.union(*(EXTRAS.get(package, ()) for package in packages)))


def libraries_among(depends: str, installed: Mapping[str, bool]) -> list[str]:
    """Which packages out of ``apt-cache depends --recurse`` are libraries that this machine lacks.

    Anything else in that tree (init systems, debconf, fonts of Prometheus' console) no program here needs.
    """
    names = {line.strip() for line in depends.splitlines() if line and not line.startswith((" ", "<", "|"))}
    return sorted(
        n for n in names if n.startswith("lib") and not n.startswith("libjs") and not installed.get(n)
    )


def _fetch(roots: list[str], progress: Progress) -> None:
    """Own package lists and own archive folder: the machine's apt state is only read."""
    work = paths.cache() / "packages"
    lists, archives = work / "lists", work / f"deb-{hashlib.sha256(' '.join(roots).encode()).hexdigest()[:8]}"
    for folder in (lists / "partial", archives, unpacked()):
        folder.mkdir(parents=True, exist_ok=True)
    apt = [
        "-o",
        f"Dir::State::Lists={lists}",
        "-o",
        f"Dir::Cache={work / 'apt'}",
        "-o",
        "APT::Sandbox::User=root",
    ]
    progress("reading the distribution's package lists")
    updated = run(["apt-get", *apt, "-qq", "update"], timeout_s=300, check=False)
    flags = ["--recurse", "--important", "--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances"]
    depends = run(["apt-cache", *apt, "depends", *flags, *roots], timeout_s=60, check=False)
    if depends.returncode != 0:
        raise ClusterError(
            f"the distribution does not offer {' '.join(roots)}:\n{tail(updated.stderr + depends.stderr)}",
            "enable the distribution's main (Ubuntu: and universe) archive, then run this again",
        )
    wanted = roots + [name for name in libraries_among(depends.stdout, _installed()) if name not in roots]
    progress(f"downloading {len(wanted)} packages: {', '.join(roots)} and libraries")
    run(["apt-get", *apt, "-qq", "download", *wanted], cwd=archives, timeout_s=600)
    for archive in sorted(archives.glob("*.deb")):
        run(["dpkg-deb", "--extract", archive, unpacked()], timeout_s=120)
    _link_iptables(unpacked() / "usr/sbin")
    _index_libraries()
    shutil.rmtree(archives)


def _link_iptables(folder: Path) -> None:
    """Names that the package's maintainer script would have linked; one program serves them all."""
    if not (folder / "xtables-nft-multi").exists():
        return
    for name in (
        f"{family}{verb}" for family in ("iptables", "ip6tables") for verb in ("", "-save", "-restore")
    ):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("xtables-nft-multi")


def _loader_cache() -> Path:
    return paths.cache() / "packages" / "ld.so.cache"


def _index_libraries() -> None:
    configuration = _loader_cache().with_name("ld.so.conf")
    folder = unpacked() / "usr/lib" / f"{platform.machine()}-linux-gnu"
    write_atomically(configuration, f"include /etc/ld.so.conf\n{folder}\n")
    ldconfig = which("ldconfig")
    if ldconfig is not None:
        run([ldconfig, "-X", "-f", configuration, "-C", _loader_cache()], timeout_s=60)


def _installed() -> dict[str, bool]:
    shown = run(["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n"], timeout_s=60).stdout
    return {line.split()[0]: line.endswith(" installed") for line in shown.splitlines()}


@dataclass(frozen=True, slots=True)
class Release:
    """The running distribution: ``debian``/``ubuntu`` and its code name."""

    distribution: str
    codename: str


def parse_release(os_release: str) -> Release:
    """Out of /etc/os-release.

    >>> parse_release('ID=debian\\nVERSION_CODENAME=bookworm\\n')
    Release(distribution='debian', codename='bookworm')
    """
    pairs = (line.split("=", 1) for line in os_release.splitlines() if "=" in line)
    values = {key: value.strip().strip('"') for key, value in pairs}
    return Release(values.get("ID", ""), values.get("VERSION_CODENAME", ""))

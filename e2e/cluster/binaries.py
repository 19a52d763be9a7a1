"""The programs of a cluster: found where the user has them, else built once from one pinned Go module.

The order of ``PROGRAMS`` is the order of building: what most wait for comes first, and kube-apiserver
compiles most of what the others share. Each program lies in the cache as soon as it is built.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import paths
from e2e.cluster.base import REPOSITORY, ClusterError, Progress, run, silent, tail, which
from e2e.cluster.golang import ensure_go, environment
from e2e.cluster.locks import locked
from e2e.cluster.versions import parse_version, within

TOOLS = REPOSITORY / "e2e" / "cluster" / "tools"
KUBERNETES, ETCD, COREDNS, HELM = "1.34.4", "3.6.4", "1.14.0", "3.19.5"
KWOK, KIND, CRANE = "0.7.0", "0.30.0", "0.22.1"
BUILD_TIMEOUT_S = 1800  # kube-apiserver takes 190 s on two cores; leave room for a slow, busy machine


@dataclass(frozen=True, slots=True)
class Program:
    """One program. ``accept``: versions [lowest, below) that do as well as the pinned one."""

    name: str
    release: str
    package: str
    accept: tuple[tuple[int, ...], tuple[int, ...]]
    version_flags: tuple[str, ...] = ("--version",)
    ldflags: tuple[str, ...] = ()

    @property
    def cached(self) -> Path:
        """Where the built program lies; the version is part of the path, so an upgrade builds anew."""
        return paths.bin_dir() / self.release / self.name


def _kubernetes_ldflags() -> tuple[str, ...]:
    """Without these the programs call themselves v0.0.0 and kubelet and kubectl find the skew too large."""
    major, minor, _ = KUBERNETES.split(".")
    values = {"gitVersion": f"v{KUBERNETES}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return tuple(
        f"-X {package}.{name}={value}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for name, value in values.items()
    )


def _helm_ldflags() -> tuple[str, ...]:
    """Charts may ask for a Kubernetes version when they are rendered without a cluster."""
    major, minor, _ = KUBERNETES.split(".")
    places = ("helm.sh/helm/v3/pkg/chartutil", "helm.sh/helm/v3/pkg/lint/rules")
    return (
        f"-X helm.sh/helm/v3/internal/version.version=v{HELM}",
        *(
            f"-X {place}.k8sVersion{part}={value}"
            for place in places
            for part, value in [("Major", major), ("Minor", minor)]
        ),
    )


def _kubernetes(
    name: str, *, accept: tuple[tuple[int, ...], tuple[int, ...]] = ((1, 34), (1, 35))
) -> Program:
    flags = ("version", "--client") if name == "kubectl" else ("--version",)
    return Program(
        name,
        f"kubernetes-{KUBERNETES}",
        f"k8s.io/kubernetes/cmd/{name}",
        accept,
        flags,
        _kubernetes_ldflags(),
    )


PROGRAMS = {
    program.name: program
    for program in (
        _kubernetes("kube-apiserver"),
        Program("etcd", f"etcd-{ETCD}", "go.etcd.io/etcd/server/v3", ((3, 5), (3, 7))),
        _kubernetes("kube-controller-manager"),
        _kubernetes("kubectl", accept=((1, 33), (1, 36))),  # Kubernetes' skew policy: one minor either way
        _kubernetes("kube-scheduler"),
        _kubernetes("kubelet"),
        _kubernetes("kube-proxy"),
        Program("pause", "pause-1", "./pause", ((0,), (0,))),
        Program("coredns", f"coredns-{COREDNS}", "./coredns", ((1, 11), (2,)), ("-version",)),
        Program(
            "helm",
            f"helm-{HELM}",
            "helm.sh/helm/v3/cmd/helm",
            ((3, 14), (4,)),
            ("version", "--short"),
            _helm_ldflags(),
        ),
        # Apart, since they cannot share our module; built only when somebody asks for them.
        Program("kind", f"kind-{KIND}", f"sigs.k8s.io/kind@v{KIND}", ((0, 30), (1,))),
        Program(
            "crane",
            f"crane-{CRANE}",
            f"github.com/google/go-containerregistry/cmd/crane@v{CRANE}",
            ((0, 20), (1,)),
            ("version",),
        ),
        Program("kwok", f"kwok-{KWOK}", f"sigs.k8s.io/kwok/cmd/kwok@v{KWOK}", ((0, 6), (1,))),
    )
}
CONTROL_PLANE = ("kube-apiserver", "etcd")
CLUSTER = (
    *CONTROL_PLANE,
    *(
        "kube-controller-manager",
        "kubectl",
        "kube-scheduler",
        "kubelet",
        "kube-proxy",
        "pause",
        "coredns",
        "helm",
    ),
)


def find(name: str) -> Path | None:
    """The program if it is somewhere already: PATH, KUBEBUILDER_ASSETS, the cache."""
    program = PROGRAMS[name]
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    for candidate in (which(name), Path(assets) / name if assets else None):
        if candidate and candidate.exists() and _acceptable(program, candidate):
            return candidate
    return program.cached if program.cached.exists() else None


def need(name: str) -> Path:
    """The program, or an error that says how to get it."""
    found = find(name)
    if found is None:
        raise ClusterError(
            f"{name} is neither on PATH nor in the cache", f"python3 -m e2e.cluster binaries {name}"
        )
    return found


def ensure_binaries(names: Iterable[str] = CLUSTER, progress: Progress = silent) -> dict[str, Path]:
    """All of ``names``, building what is missing; safe to call from several processes at once."""
    wanted = set(names)
    if unknown := wanted - PROGRAMS.keys():
        raise ClusterError(f"unknown programs: {', '.join(sorted(unknown))}", f"known: {', '.join(PROGRAMS)}")
    return {
        name: find(name) or _build(program, progress) for name, program in PROGRAMS.items() if name in wanted
    }


def _acceptable(program: Program, candidate: Path) -> bool:
    shown = run([candidate, *program.version_flags], timeout_s=30, check=False)
    return within(parse_version(shown.stdout + shown.stderr), *program.accept)


def _build(program: Program, progress: Progress) -> Path:
    go = ensure_go()
    # Two builds at once would only share the cores and, on small machines, exhaust the memory.
    with locked(paths.bin_dir() / "build.lock", timeout_s=BUILD_TIMEOUT_S, progress=progress):
        if program.cached.exists():
            return program.cached
        progress(f"building {program.name} ({program.release})")
        start = time.monotonic()
        program.cached.parent.mkdir(parents=True, exist_ok=True)
        temporary = program.cached.with_name(f".{program.name}.tmp")
        built = run(
            build_command(go, program, temporary),
            env={**environment(), **({"GOBIN": str(temporary.parent)} if "@" in program.package else {})},
            cwd=TOOLS,
            timeout_s=BUILD_TIMEOUT_S,
            check=False,
        )
        if built.returncode != 0:
            raise ClusterError(
                f"building {program.name} failed:\n{tail(built.stdout + built.stderr)}",
                "check that Go can reach its module proxy (GOPROXY, HTTPS_PROXY), then run this again",
            )
        if "@" not in program.package:
            temporary.replace(program.cached)
        progress(f"built {program.name} in {time.monotonic() - start:.0f} s")
        return program.cached


def build_command(go: Path, program: Program, output: Path) -> list[str]:
    """``go build`` inside our module, or ``go install`` for what cannot share it (writes to GOBIN)."""
    ldflags = " ".join(("-s", "-w", *program.ldflags))
    if "@" in program.package:
        return [str(go), "install", "-ldflags", ldflags, program.package]
    return [str(go), "build", "-ldflags", ldflags, "-o", str(output), program.package]

"""The stage of the demo and of the end-to-end tests: a provider, its images, and everything installed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster import binaries, images, packages, paths
from e2e.cluster.base import ClusterError
from e2e.cluster.baseimage import ensure_base_image
from e2e.cluster.locks import locked
from e2e.cluster.provider import Cluster, Provider
from e2e.demo import install
from e2e.demo.graph import Say, Step, stderr_line
from e2e.kube import Kube

IMAGES = ("engine", "operator", "silicon", "prometheus")
_AGENT = ("Dockerfile", "requirements", "operator/tangram", "engine/tangram_http")
_ENGINE = (
    *("Dockerfile", "requirements", "engine/tangram_engine", "engine/tangram_http", "models/tangram-tiny"),
    "operator/tangram/catalog/models.yaml",
)
_OPERATOR = ("Dockerfile", "requirements", "operator/tangram", "engine/tangram_http")
SOURCES = {
    "engine": _ENGINE,
    "paced-engine": (*_ENGINE, "e2e/images", "e2e/paced_engine"),
    "operator": _OPERATOR,
    "runtime-stand-in": (*_OPERATOR, "e2e/images", "e2e/runtimes"),
    "silicon": ("e2e/images", "requirements", "e2e/silicon", "operator/tangram/catalog"),
    "prometheus": ("e2e/images",),
    "agent": _AGENT,
    "fetch": ("Dockerfile", "requirements", "operator/tangram"),
    "gateway": ("Dockerfile", "requirements", "operator/tangram", "engine/tangram_http"),
    "agent-of-simulated-driver": (*_AGENT, "e2e/images", "e2e/silicon"),
}


@dataclass(slots=True)
class Stage:
    """What the steps of one demo share. Built once, filled as steps end."""

    provider: Provider
    registry: str = images.PREFIX
    values: tuple[Path, ...] = (install.VALUES,)
    step_pace_ms: str = ""  # of the image paced-engine
    kube: Kube | None = None
    description: str = ""
    references: dict[str, str] = field(default_factory=dict)

    def cluster(self) -> Kube:
        """The cluster's command line, once it is up."""
        if self.kube is None:
            raise ClusterError("the cluster is not up yet")
        return self.kube

    def install_tangram(self, **other_images: str) -> str:
        """Install or upgrade Tangram, with other images than those that were built if some are named."""
        return install.tangram(self.cluster(), {**self.references, **other_images}, values=self.values)

    def add_image(self, target: str, say: Say = stderr_line) -> str:
        """Build an image that the demo does without, and bring it to the cluster; returns its reference."""
        self._build(target, say)
        self._load(target, say)
        return self.references[target]

    def steps(self) -> list[Step]:
        """Everything from nothing to Prometheus and Tangram running; what can go side by side does."""
        builds = [
            Step(f"image {target}", lambda say, t=target: self._build(t, say), ("base image",))
            for target in IMAGES
        ]
        loads = [
            Step(f"load {target}", lambda say, t=target: self._load(t, say), (f"image {target}", "cluster"))
            for target in IMAGES
        ]
        return [
            Step("packages", lambda say: packages.ensure_packages(packages.ALL, say)),
            Step("programs", self._programs),
            Step("python", self._python),
            Step("base image", ensure_base_image, ("packages",)),
            *builds,
            Step("cluster", self._up, ("packages", "programs")),
            *loads,
            Step(
                "gpu stand-in",
                lambda _: install.silicon(self.cluster(), self.references["silicon"]),
                ("load silicon",),
            ),
            Step(
                "prometheus",
                lambda _: install.prometheus(
                    self.cluster(), self.references["prometheus"], self.references["silicon"]
                ),
                ("load prometheus", "load silicon"),
            ),
            Step(
                "tangram",
                lambda _: self.install_tangram(),
                ("load operator", "load engine", "gpu stand-in"),
            ),
        ]

    def _programs(self, say: Say) -> str:
        found = binaries.ensure_binaries(binaries.CLUSTER, say)
        return f"{len(found)} programs"

    def _python(self, _: Say) -> str:
        return str(ensure_python())

    def _build(self, target: str, say: Say) -> str:
        builder = images.choose_builder(self.provider.name)
        self.references[target] = images.build_image(
            target,
            builder=builder,
            registry=self.registry,
            tag=self._tag(target),
            environ={**self._arguments(target), **os.environ},
            progress=say,
        )
        if (
            self.provider.name == "local"
        ):  # the slow half of loading, while the cluster's programs are still built
            images.export_to_layout(self.references[target], say)
        return self.references[target]

    def _arguments(self, target: str) -> Mapping[str, str]:
        if target == "engine":
            return images.FEW_KERNELS
        if target == "paced-engine":
            return {"ENGINE_IMAGE": self.references["engine"], "STEP_PACE_MS": self.step_pace_ms}
        if target == "runtime-stand-in":
            return {"OPERATOR_IMAGE": self.references["operator"]}
        return {"AGENT_IMAGE": self.references["agent"]} if target == "agent-of-simulated-driver" else {}

    def _tag(self, target: str) -> str:
        tag = source_tag(SOURCES[target])
        return f"{tag}-{self.step_pace_ms.replace(',', '-')}" if target == "paced-engine" else tag

    def _up(self, say: Say) -> str:
        up = self.provider.up(say)
        self.kube = command_line(up)
        self.description = up.description
        return up.description

    def _load(self, target: str, say: Say) -> None:
        self.provider.load_image(self.references[target], say)


def command_line(cluster: Cluster) -> Kube:
    """kubectl and helm for a cluster that is up."""
    return Kube(cluster.kubeconfig, str(binaries.need("kubectl")), str(binaries.need("helm")))


def source_tag(sources: Iterable[str], root: Path = install.ROOT) -> str:
    """A tag that changes exactly when one of the files changes, so that a new build is a new image."""
    digest = hashlib.sha256()
    for source in sources:
        top = root / source
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def ensure_python() -> Path:
    """A small virtual environment with the official `openai` client; returns its interpreter."""
    lock = install.ROOT / "requirements" / "e2e.lock"
    folder = (
        paths.cache() / "venv" / hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:12]
    )
    stamp = folder / ".complete"
    with locked(folder.with_suffix(".lock"), timeout_s=700):
        if not stamp.exists():
            _make_python(folder, lock)
            stamp.touch()
    return folder / "bin" / "python"


def _make_python(folder: Path, lock: Path) -> None:
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--require-hashes"]
    done = subprocess.run(
        [*pip, "--requirement", str(lock)], capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode:
        raise ClusterError(f"installing {lock.name} failed: {done.stderr.strip()[-1000:]}")


def registry_for(provider: str) -> str:
    """Where images go. A cluster of the user's own can only pull from a registry that it reaches.

    Raises:
        ClusterError: the provider is `existing` and REGISTRY is not set.
    """
    if provider != "existing":
        return images.PREFIX
    if registry := os.environ.get("REGISTRY"):
        return registry
    raise ClusterError(
        "a cluster of your own pulls images from a registry", "REGISTRY=registry.example.com/team make demo"
    )

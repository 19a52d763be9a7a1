"""Builds the images of Dockerfiles with the builder at hand, and brings them to the local containerd.

The way to containerd moves only what is new: missing layers are written, uncompressed, into one OCI layout;
from there a layer reaches containerd's content store as a hard link. A change of code is a small layer.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import oci, packages, paths
from e2e.cluster.base import REPOSITORY, ClusterError, Progress, run, silent, tail, which, write_atomically
from e2e.cluster.baseimage import archive, ensure_base_image, host_bundle, local_reference
from e2e.cluster.locks import locked

BUILD_TIMEOUT_S, PUSH_TIMEOUT_S = 3600.0, 600.0  # the engine: ten minutes on two quiet cores
INGEST_ATTEMPTS = 3
# Builds of one repository that stay on the disk: what runs, what replaces it, and one to go back to.
KEPT_BUILDS = 3
PREFIX = "tangram.local"
# What a company's network needs inside the build; the Dockerfile declares those that it passes on.
PASSED_ON = (
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST"),
    *("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INSECURE_HOST"),
    *("KERNEL_ARCHITECTURES", "KERNEL_MODELS", "KERNEL_FORMATS"),
    *("AGENT_IMAGE", "ENGINE_IMAGE", "OPERATOR_IMAGE", "STEP_PACE_MS"),
)
# What the demo and the tests compile into the engine image: no GPU is there to run it.
FEW_KERNELS = {"KERNEL_ARCHITECTURES": "90", "KERNEL_MODELS": "Qwen3-0.6B", "KERNEL_FORMATS": "bf16"}
SCRATCH_BYTES = 12 * 2**30  # the torch layer twice, and room for the compilers that work beside
CONTAINERD_BLOBS = Path("io.containerd.content.v1.content/blobs/sha256")

Ctr = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Recipe:
    """One image: a target of a Dockerfile."""

    target: str
    repository: str
    dockerfile: str


RECIPES = {
    recipe.target: recipe
    for recipe in (
        Recipe("operator", "tangram-operator", "Dockerfile"),
        Recipe("agent", "tangram-agent", "Dockerfile"),
        Recipe("fetch", "tangram-fetch", "Dockerfile"),
        Recipe("gateway", "tangram-gateway", "Dockerfile"),
        Recipe("engine", "tangram-engine", "Dockerfile"),
        Recipe("silicon", "tangram-silicon", "e2e/images/Dockerfile"),
        Recipe("agent-of-simulated-driver", "tangram-agent-simulated", "e2e/images/Dockerfile"),
        Recipe("paced-engine", "tangram-engine-paced", "e2e/images/Dockerfile"),
        Recipe("runtime-stand-in", "tangram-runtime-stand-in", "e2e/images/Dockerfile"),
        Recipe("prometheus", "tangram-prometheus", "e2e/images/Dockerfile"),
    )
}


PRODUCT = ("operator", "agent", "fetch", "gateway", "engine")  # what an installation runs


def oci_layout() -> Path:
    """The layout of every image built for the local cluster; layers that images share lie there once."""
    return paths.images_dir() / "layout"


def docker_answers() -> bool:
    return (
        which("docker") is not None and run(["docker", "version"], timeout_s=15, check=False).returncode == 0
    )


def choose_builder(provider: str) -> str:
    """``buildah`` for the local cluster (it hands over single layers), else Docker when it answers."""
    return "docker" if provider != "local" and docker_answers() else "buildah"


def reference(target: str, *, registry: str = PREFIX, tag: str = "dev") -> str:
    """The full name of one of our images, for example ``tangram.local/tangram-engine:dev``."""
    return f"{registry}/{RECIPES[target].repository}:{tag}"


def build_image(
    target: str,
    *,
    builder: str = "buildah",
    registry: str = PREFIX,
    tag: str = "dev",
    context: Path = REPOSITORY,
    environ: Mapping[str, str] = os.environ,
    progress: Progress = silent,
) -> str:
    """Build one target on the base image; returns its reference. Unchanged layers come from a cache.

    `environ`: build arguments among it are passed on (`PASSED_ON`).
    """
    name, recipe = reference(target, registry=registry, tag=tag), RECIPES[target]
    base = ensure_base_image(progress)
    _offer_bundle(context)
    give_base(builder, base, progress)
    start = time.monotonic()
    progress(f"building {name} with {builder} on {base}")
    arguments = build_arguments(recipe, name, base, context, environ)
    if builder == "docker":
        built = run(["docker", "build", *arguments], timeout_s=BUILD_TIMEOUT_S, check=False)
    else:
        built = _build_layers(recipe, name, arguments, progress)
    if built.returncode != 0:
        raise ClusterError(f"building {name} failed:\n{tail(built.stdout + built.stderr, 30)}")
    progress(f"built {name} in {time.monotonic() - start:.0f} s")
    return name


def build_arguments(
    recipe: Recipe, name: str, base: str, context: Path, environ: Mapping[str, str]
) -> list[str]:
    """What ``docker build`` and ``buildah build`` both understand."""
    passed = [f"--build-arg={key}={environ[key]}" for key in PASSED_ON if key in environ]
    return [
        f"--file={context / recipe.dockerfile}",
        f"--target={recipe.target}",
        f"--tag={name}",
        f"--build-arg=BASE_IMAGE={base}",
        "--network=host",
        *passed,
        str(context),
    ]


# ---- buildah -------------------------------------------------------------------------------------------


def buildah(
    verb: str, *words: str | Path, timeout_s: float, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run buildah on storage of our own, isolated so that none of its mounts stays."""
    packages.ensure_packages(packages.BUILD)
    home = _home()
    policy = home / "policy.json"
    if not policy.exists():
        write_atomically(policy, json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))
        write_atomically(home / "registries.conf", 'unqualified-search-registries = ["docker.io"]\n')
        # Else it makes /etc/cni.
        write_atomically(home / "containers.conf", f'[network]\nnetwork_config_dir = "{home / "networks"}"\n')
    storage = [
        f"--root={home / 'storage'}",
        f"--runroot={home / 'run'}",
        f"--storage-driver={storage_driver()}",
    ]
    policies = [f"--signature-policy={policy}"] if verb in {"build", "commit", "from", "pull", "push"} else []
    options = [*storage, f"--registries-conf={home / 'registries.conf'}", "--log-level=error"]
    command = packages.isolated(packages.need("buildah"), *options, verb, *policies, *words)
    settings = {"CONTAINERS_CONF": str(home / "containers.conf"), "TMPDIR": str(_scratch())}
    return run(command, timeout_s=timeout_s, check=check, env={**packages.environment(), **settings})


def _build_layers(
    recipe: Recipe, name: str, arguments: list[str], progress: Progress
) -> subprocess.CompletedProcess[str]:
    """Build one target while no other target of the same Dockerfile is built.

    Targets of one Dockerfile begin with the same layers. Two builds beside each other on an empty storage
    both commit those; a later look-up follows one of the two chains and finds nothing above the other.
    """
    lock = _home() / f"{recipe.dockerfile.replace('/', '-')}.lock"
    with locked(lock, timeout_s=2 * BUILD_TIMEOUT_S, progress=progress):
        built = buildah(
            "build", "--layers", "--isolation=chroot", *arguments, timeout_s=BUILD_TIMEOUT_S, check=False
        )
        if built.returncode == 0:
            _forget_builds(name)
        return built


def _forget_builds(name: str) -> None:
    """Remove the builds of this repository that the layout has dropped; layers that others use stay.

    Under the lock of `_build_layers`: a build beside this one may stand on a layer that goes. The list fails
    where a build of another Dockerfile removes an image meanwhile: then the next build forgets.
    """
    kept = {name, *oci.named(oci_layout())}
    listed = buildah("images", "--format={{.Name}}:{{.Tag}}", timeout_s=60, check=False)
    for other in listed.stdout.split() if listed.returncode == 0 else ():
        if oci.repository(other) == oci.repository(name) and other not in kept:
            # One that a killed build still holds stays; it is no reason to refuse the new one.
            buildah("rmi", other, timeout_s=300, check=False)


def _scratch() -> Path:
    """Where layers lie for a moment between two copies: in memory, when that is plentiful."""
    memory = Path("/dev/shm")
    if memory.is_dir() and min(shutil.disk_usage(memory).free, _available_memory()) > SCRATCH_BYTES:
        return memory
    (_home() / "tmp").mkdir(parents=True, exist_ok=True)
    return _home() / "tmp"


def _available_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _home() -> Path:
    return paths.cache() / "buildah"


def storage_driver() -> str:
    """``overlay``, or ``vfs`` (copies every layer) where the cache's file system carries no overlays."""
    memory = _home() / "driver"
    if not memory.exists():
        write_atomically(memory, "overlay" if _overlay_works(_home()) else "vfs")
    return memory.read_text()


def _overlay_works(folder: Path) -> bool:
    probe = folder / "probe"
    for name in ("lower", "upper", "work", "merged"):
        (probe / name).mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={probe / 'lower'},upperdir={probe / 'upper'},workdir={probe / 'work'}"
    mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(probe / "merged")]
    done = run(packages.isolated(*mount), timeout_s=20, check=False)
    shutil.rmtree(probe, ignore_errors=True)
    return done.returncode == 0


def give_base(builder: str, name: str, progress: Progress = silent) -> None:
    """Make the base image known to the builder, once: import ours, pull any other."""
    if builder == "docker":
        if run(["docker", "image", "inspect", name], timeout_s=30, check=False).returncode != 0:
            progress(f"bringing {name} into Docker")
            ours = ["docker", "import", archive(), name]
            run(ours if name == local_reference() else ["docker", "pull", name], timeout_s=600)
        return
    with locked(_home() / "base.lock", timeout_s=600, progress=progress):
        if buildah("inspect", "--type=image", name, timeout_s=60, check=False).returncode == 0:
            return
        progress(f"bringing {name} into buildah")
        if name != local_reference():
            buildah("pull", name, timeout_s=600)
            return
        container = buildah("from", "--pull-never", "scratch", timeout_s=60).stdout.strip()
        buildah("add", "--quiet", container, archive(), "/", timeout_s=300)
        buildah("commit", "--quiet", "--rm", "--disable-compression", container, name, timeout_s=300)


def _offer_bundle(context: Path) -> None:
    """Where the machine names a bundle of authorities, the build must trust it too (proxies)."""
    named = any(os.environ.get(variable) for variable in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"))
    target, bundle = context / ".build" / "ca-certificates.crt", host_bundle()
    if named and bundle and not target.exists():
        write_atomically(target, bundle.read_bytes())


# ---- containerd ----------------------------------------------------------------------------------------


def load_into_containerd(ctr: Ctr, store: Path, name: str, progress: Progress = silent) -> None:
    """Bring image ``name`` from buildah into containerd, moving only the layers that it lacks."""
    start = time.monotonic()
    image = export_to_layout(name, progress)
    exported = time.monotonic()
    new = _take_in(ctr, store, image)
    _forget_images(ctr, name)
    now = time.monotonic()
    size = sum(blob.size for blob in new) / 1e6
    times = f"export {exported - start:.1f} s, import {now - exported:.1f} s"
    progress(f"loaded {name}: {len(new)} new layers, {size:.1f} MB ({times})")


def _forget_images(ctr: Ctr, name: str) -> None:
    """Remove from containerd the builds of this repository that the layout has dropped, with their layers."""
    kept = {name, *oci.named(oci_layout())}
    listed = ctr("images", "ls", "--quiet").split()
    dropped = [
        other for other in listed if oci.repository(other) == oci.repository(name) and other not in kept
    ]
    if dropped:
        ctr("images", "rm", "--sync", *dropped, timeout_s=PUSH_TIMEOUT_S)


def _take_in(ctr: Ctr, store: Path, image: oci.LayoutImage) -> list[oci.Blob]:
    """Register missing layers, then the image that refers to them; returns what was missing.

    containerd may collect a layer that nothing refers to yet, and its index, not its folder, says what it
    has. So look there, and look again when the import finds a layer gone.
    """
    for attempt in range(INGEST_ATTEMPTS):
        known = set(ctr("content", "ls", "--quiet").split())
        new = [blob for blob in image.layers if blob.digest not in known]
        _ingest(ctr, store, new)
        try:
            ctr("images", "import", "-", stdin=image.archive, timeout_s=PUSH_TIMEOUT_S)
        except ClusterError as error:
            if attempt == INGEST_ATTEMPTS - 1 or "not found" not in str(error):
                raise
        else:
            break
    return new


def _ingest(ctr: Ctr, store: Path, blobs: list[oci.Blob]) -> None:
    for blob in blobs:
        _link_blob(oci_layout(), store, blob.digest)
        name = blob.digest.removeprefix("sha256:")
        ctr(
            *("content", "ingest", f"--expected-digest={blob.digest}", f"--expected-size={blob.size}"),
            f"tangram-{blob.digest[7:19]}",
            # containerd finds the linked blob complete and seeks to its end: registered, not copied. Where it
            # has collected the link in the meantime, as nothing named the blob yet, it copies ours.
            stdin=oci_layout() / "blobs/sha256" / name,
            timeout_s=PUSH_TIMEOUT_S,
        )


def export_to_layout(name: str, progress: Progress = silent) -> oci.LayoutImage:
    """The first half of loading, which needs no cluster yet; nothing is written when it was done before."""
    with locked(paths.images_dir() / "layout.lock", timeout_s=PUSH_TIMEOUT_S, progress=progress):
        _copy_to_layout(name)
        image = oci.find_in_layout(oci_layout(), name)
        oci.retain(oci_layout(), name, KEPT_BUILDS)
        oci.prune_layout(oci_layout())
    return image


def _copy_to_layout(name: str) -> None:
    """buildah's storage -> our layout. skopeo, because buildah would compress the layers on this way."""
    store = f"{storage_driver()}@{_home() / 'storage'}+{_home() / 'run'}"
    copy = ["copy", "--quiet", "--dest-oci-accept-uncompressed-layers"]
    command = packages.isolated(
        *(packages.need("skopeo"), f"--policy={_home() / 'policy.json'}", *copy),
        *(f"containers-storage:[{store}]{name}", f"oci:{oci_layout()}:{name}"),
    )
    run(command, timeout_s=PUSH_TIMEOUT_S, env=packages.environment())


def _link_blob(source: Path, store: Path, digest: str) -> bool:
    """Put one blob where containerd keeps its own; False when it is there already."""
    name = digest.removeprefix("sha256:")
    target = store / CONTAINERD_BLOBS / name
    if target.exists():
        return False
    temporary = target.with_name(f".{name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(source / "blobs/sha256" / name, temporary)
    except OSError:  # another file system
        shutil.copyfile(source / "blobs/sha256" / name, temporary)
    temporary.replace(target)
    return True

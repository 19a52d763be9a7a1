"""Building images on an empty storage: the second build finds every layer of the first."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from e2e.cluster import images, oci, packages, paths
from e2e.cluster.local import Local

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

TARGETS = ("engine", "operator")
DOCKERFILE = """
ARG BASE_IMAGE
FROM ${BASE_IMAGE} AS base
COPY common /common
COPY more /more
FROM base AS engine
COPY engine /engine
FROM base AS operator
COPY operator /operator
"""


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build context whose two targets share layers, and a builder that has never built anything."""
    if reason := Local().unusable_because():
        pytest.skip(reason)
    packages.ensure_packages(packages.BUILD)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "packages").symlink_to(paths.cache() / "packages")
    monkeypatch.setenv("TANGRAM_CACHE", str(cache))
    monkeypatch.setenv("BASE_IMAGE", "tangram.local/tiny:1")
    for name in ("common", "more", *TARGETS):
        (tmp_path / name).write_text(name)
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    container = images.buildah("from", "--pull-never", "scratch", timeout_s=60).stdout.strip()
    images.buildah("commit", "--quiet", "--rm", container, "tangram.local/tiny:1", timeout_s=60)
    return tmp_path


def build_side_by_side(context: Path) -> set[str]:
    """Build all targets at once; returns the ids of every image and layer that the storage then has."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda target: images.build_image(target, context=context), TARGETS))
    return set(images.buildah("images", "--all", "--quiet", "--no-trunc", timeout_s=60).stdout.split())


def exported_layers() -> dict[str, tuple[int, int]]:
    """Export all targets; returns each layer of the layout with its inode and its time of change."""
    exported = [images.export_to_layout(images.reference(target)) for target in TARGETS]
    digests = {layer.digest for image in exported for layer in image.layers}
    folder = images.oci_layout() / "blobs/sha256"
    found = {digest: (folder / digest.removeprefix("sha256:")).stat() for digest in digests}
    return {digest: (stat.st_ino, stat.st_mtime_ns) for digest, stat in found.items()}


def test_after_one_cold_build_side_by_side_the_second_commits_no_layer(context: Path) -> None:
    first = build_side_by_side(context)
    assert build_side_by_side(context) == first


def test_a_layer_that_was_exported_once_is_not_written_again(context: Path) -> None:
    build_side_by_side(context)
    first = exported_layers()
    build_side_by_side(context)
    assert exported_layers() == first


def test_a_changed_file_is_a_new_layer_of_its_own_target_only(context: Path) -> None:
    first = build_side_by_side(context)
    (context / "engine").write_text("changed")
    assert len(build_side_by_side(context) - first) == 1


def test_old_builds_of_a_repository_leave_the_disk(context: Path) -> None:
    for tag in ("1", "2", "3", "4", "5"):
        (context / "engine").write_text(tag)
        images.export_to_layout(images.build_image("engine", tag=tag, context=context))

    tags = [images.reference("engine", tag=tag) for tag in ("3", "4", "5")]
    listed = images.buildah("images", "--format={{.Name}}:{{.Tag}}", timeout_s=60).stdout.split()
    # The builder forgets a build when the next one begins to replace it.
    assert {name for name in listed if "engine" in name} == {images.reference("engine", tag="2"), *tags}
    assert oci.named(images.oci_layout()) == tags
    stored = images.buildah("images", "--all", "--quiet", timeout_s=60).stdout.split()
    # One image for each build, the base, and the two layers that all builds share.
    assert len(set(stored)) == 4 + 1 + 2


def test_a_list_that_fails_beside_another_build_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    builds = images.reference("engine", tag="old")
    commands: list[str] = []

    def buildah(verb: str, *words: str, timeout_s: float, check: bool = True) -> CompletedProcess[str]:
        assert not check
        commands.append(verb)
        return CompletedProcess([verb, *words], 125, f"{builds}\n", "image not known")

    monkeypatch.setattr(images, "buildah", buildah)
    images._forget_builds(images.reference("engine", tag="new"))
    assert commands == ["images"]


def test_containerd_forgets_what_the_layout_has_dropped(context: Path) -> None:
    images.export_to_layout(images.build_image("engine", tag="new", context=context))
    removed: list[str | Path] = []

    def ctr(*words: str | Path, stdin: bytes | Path | None = None, timeout_s: float = 60) -> str:
        if words[:2] == ("images", "ls"):
            names = (
                *(images.reference("engine", tag=tag) for tag in ("old", "new")),
                "tangram.local/pause:1",
            )
            return "\n".join(names)
        removed.extend(words)
        return ""

    images._forget_images(ctr, images.reference("engine", tag="new"))
    assert removed == ["images", "rm", "--sync", images.reference("engine", tag="old")]

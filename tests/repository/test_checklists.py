"""The checklists of CONTRIBUTING lead where they say: each is followed on a copy of the sources."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(
    r"```\w+\n +# (?P<path>\S+), after `(?P<anchor>[^`]+)`(?P<more>[^\n]*)\n(?P<text>.*?)\n +```", re.DOTALL
)
PATH = re.compile(r"`((?:operator|engine|charts|tests)/[\w./]+)`")
INDENT = "   "  # of a block in a list


def section(title: str) -> str:
    _, _, rest = (ROOT / "CONTRIBUTING.md").read_text().partition(f"### {title}\n")
    assert rest, title
    return re.split(r"^##+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("operator", "engine", "charts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def follow(title: str, copy: Path) -> None:
    """Apply each block of a checklist after the line that it names, which must be there once."""
    blocks = list(BLOCK.finditer(section(title)))
    assert blocks, title
    for block in blocks:
        path = copy / block["path"]
        lines = path.read_text().splitlines()
        places = [number for number, line in enumerate(lines) if line.startswith(block["anchor"])]
        assert len(places) == 1, (block["path"], block["anchor"])
        place = places[0] + 1
        if "docstring" in block["more"]:
            place = next(i for i in range(place, len(lines)) if lines[i].endswith('"""')) + 1
        lines[place:place] = [line.removeprefix(INDENT) for line in block["text"].splitlines()]
        path.write_text("\n".join(lines) + "\n")


def run(copy: Path, *command: str) -> str:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(copy / name) for name in ("operator", "engine", "."))
    }
    done = subprocess.run(
        [sys.executable, "-P", *command],
        env=environment,
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "title",
    [
        "Add a field to LLMDeployment",
        "Add a model family",
        "Add a GPU",
        "Add a setting of the operator",
        "Add a metric of the operator",
    ],
)
def test_every_file_that_a_checklist_names_is_there(title: str) -> None:
    names = PATH.findall(section(title))

    assert not [name for name in names if not (ROOT / name).exists()]


FIELD = """
import json, sys
from tangram.api import crd, parse
from tests.shell.test_manifests import SETTINGS, SLICE, action
from tangram.shell.objects import manifests
meta = {"uid": "u", "namespace": "n", "name": "m", "creationTimestamp": "2026-01-01T00:00:00Z"}
spec = {"model": {"uri": "image:///m"}, "engine": {"logRequests": True}}
made = manifests.deployment(parse({"metadata": meta, "spec": spec}), action(SLICE), SETTINGS)
json.dump(made["spec"]["template"]["spec"]["containers"][0]["args"], sys.stdout)
"""


SCHEMA = """
from tangram.api.llm_deployment.spec import LLMDeploymentSpec
print(LLMDeploymentSpec.model_json_schema())
"""


def test_a_field_reaches_the_pod(copy: Path) -> None:
    follow("Add a field to LLMDeployment", copy)
    (copy / "tests").symlink_to(ROOT / "tests")
    (copy / "probe.py").write_text(FIELD)

    script = f"import sys; sys.path.append({str(copy)!r}); exec(open('probe.py').read())"
    args = json.loads(run(copy, "-c", script))

    assert "--log-requests" in args
    assert "logRequests" in run(copy, "-c", SCHEMA)


FAMILY = """
import json, sys
from tangram.catalog.configs.model_config import architecture_from_config
from tangram_engine.checkpoint.config import parse_config
config = dict(architectures=["AquilaForCausalLM"], hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, vocab_size=256, max_position_embeddings=512,
    torch_dtype="bfloat16")
print(parse_config(config, {}, "bf16").family, architecture_from_config(config, "x").parameters)
"""


CONTRACT = """
import sys; sys.path.append(sys.argv[1])
from tests.contracts.test_model_families import CONFIGS, assert_both_read_the_same_tensors
for config in CONFIGS.values():
    assert_both_read_the_same_tensors(config | {"architectures": ["AquilaForCausalLM"]})
"""


def test_a_family_is_known_to_engine_and_operator_and_keeps_their_contract(copy: Path) -> None:
    follow("Add a model family", copy)
    (copy / "tests").symlink_to(ROOT / "tests")

    family, parameters = run(copy, "-c", FAMILY).split()

    assert family == "aquila"
    assert int(parameters) == 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64) + 2 * 256 * 64 + 64
    run(copy, "-c", CONTRACT, str(copy))


def test_a_gpu_is_listed_recognised_and_sized(copy: Path) -> None:
    follow("Add a GPU", copy)

    listed = json.loads(run(copy, "-m", "tangram.cli.main", "gpus", "-o", "json"))
    command = "size --model llama-3.1-8b --sku X100-96GB --input 1000 --output 200"
    sized = run(copy, "-m", "tangram.cli.main", *command.split())

    assert "X100-96GB" in json.dumps(listed)
    assert "X100-96GB" in sized
    probe = "from tangram.catalog import match_product; print(match_product('NVIDIA-X100-96GB'))"
    assert run(copy, "-c", probe).strip() == "X100-96GB"


def test_a_metric_is_served(copy: Path) -> None:
    follow("Add a metric of the operator", copy)
    probe = (
        "from prometheus_client import generate_latest\n"
        "from tangram.shell.measure.metrics import OperatorMetrics\n"
        "metrics = OperatorMetrics(); metrics.jobs_started.labels('inspect').inc()\n"
        "print(generate_latest(metrics.registry).decode())"
    )

    assert 'tangram_jobs_started_total{kind="inspect"} 1.0' in run(copy, "-c", probe)


def test_a_setting_is_a_value_of_the_chart(copy: Path) -> None:
    follow("Add a setting of the operator", copy)
    run(copy, "-m", "charts.generate")

    schema = json.loads((copy / "charts" / "tangram" / "values.schema.json").read_text())
    values = yaml.safe_load((copy / "charts" / "tangram" / "values.yaml").read_text())
    described = {"description": "Whether plain log lines have colors.", "type": "boolean"}
    assert schema["properties"]["operator"]["properties"]["logColor"] == described
    assert values["operator"]["logColor"] is False

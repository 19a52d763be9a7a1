"""Bad input to `tangram plan` ends in one line with file, key and what would be right; exit status 2."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.plans import H100, Planner, gpu, inventory, request, run


@pytest.fixture
def planner(tmp_path):
    return Planner(tmp_path)


def llm(name="chat", **spec):
    spec = {"model": {"uri": "pvc://m/llama-3.1-8b"}, **spec}
    return {"kind": "LLMDeployment", "metadata": {"name": name}, "spec": spec}


def pool(name="p", **spec):
    return {"kind": "GPUPool", "metadata": {"name": name}, "spec": spec}


def node(name, labels=None, **counts):
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", **(labels or {})}
    counts = {f"nvidia.com/{key}": value for key, value in counts.items()}
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": {"allocatable": counts}}


ONE = gpu("g0")
CASES = {
    "duplicate GPUs": ([inventory(ONE, ONE)], "GPU g0: is there more than once"),
    "duplicate GPUs of two files": ([inventory(ONE), inventory(ONE)], "GPU g0: is there more than once"),
    "overlap": (
        [inventory(gpu("g0", "4g.40gb@0=a", "2g.20gb@2=b"))],
        "2g.20gb@2 (of b) overlaps 4g.40gb@0 (of a)",
    ),
    "a whole GPU beside a slice": (
        [inventory(gpu("g0", "gpu@0=a", "1g.10gb@5"))],
        "gpus[0]: instances: GPU g0: 1g.10gb@5 (free) overlaps gpu@0 (of a)",
    ),
    "a whole GPU twice": (
        [inventory(gpu("g0", "gpu@0=a", "gpu@0=b"))],
        "GPU g0: gpu@0 (of b) overlaps gpu@0 (of a)",
    ),
    "illegal start": ([inventory(gpu("g0", "4g.40gb@4=a"))], "4g.40gb may start at 0"),
    "unknown profile on the board": ([inventory(gpu("g0", "3g.20gb@0=a"))], "no profile '3g.20gb'"),
    "unknown profile asked for": (
        [inventory(ONE), request("r", "5g.50gb", 1)],
        "SliceRequest r: profile: '5g.50gb' is no MIG profile of H100-80GB-SXM",
    ),
    "profile that the board asked for has not": (
        [inventory(ONE), request("r", "3g.40gb", 1, sku="A30")],
        "SliceRequest r: profile: '3g.40gb' is no MIG profile of A30",
    ),
    "another version": (
        [{**request("r", "gpu", 1), "apiVersion": "tangram.dev/v2"}],
        "SliceRequest: apiVersion: is 'tangram.dev/v2'; supported is tangram.dev/v1alpha1",
    ),
    "another version of a Node": (
        [{"kind": "Node", "apiVersion": "v2", "metadata": {"name": "n"}}],
        "Node: apiVersion: is 'v2'; supported is v1",
    ),
    "price of 400 digits": ([inventory(ONE, prices={H100: 10**400})], "not a number of zero or more"),
    "move cost of 400 digits": ([inventory(ONE, moveCost=10**400)], "000..., not a number of zero or more"),
    "move cost that no sum can hold": ([inventory(ONE, moveCost=1e15)], "moveCost: is 1000000000000000.0"),
    "unknown SKU": ([inventory(gpu("g0", sku="H1000"))], "gpus[0]: sku: no GPU is called 'H1000'"),
    "SKU without MIG": ([inventory(gpu("g0", "1g.10gb@0=a", sku="L4"))], "MIG cannot cut L4"),
    "negative price": ([inventory(ONE, prices={H100: -1})], "is -1, not a number of zero or more"),
    "price that is no number": ([inventory(ONE, prices={H100: float("nan")})], "is nan, not a number"),
    "negative count": ([inventory(ONE), request("r", "1g.10gb", -2)], "count: is -2"),
    "typo": ([inventory({"id": "g0", "sku": H100, "instnces": []})], "did you mean instances?"),
    "no id": ([inventory({"sku": H100})], "gpus[0]: id: is missing"),
    "no start": (
        [inventory({"id": "g", "sku": H100, "instances": [{"profile": "1g.10gb"}]})],
        "start: is missing",
    ),
    "unknown kind": ([{"kind": "Job"}], "kind is 'Job'; supported are Inventory"),
    "no kind": ([["a", "list"]], "is not an object with a kind"),
    "two prices": (
        [inventory(prices={H100: 1}), inventory(prices={H100: 2})],
        "is 1.0 and 2.0 in two documents",
    ),
    "two horizons": ([inventory(horizonHours=1), inventory(horizonHours=2)], "in two documents"),
    "no horizon": ([inventory(horizonHours=0)], "horizonHours: must be above 0"),
    "one name twice": (
        [request("r", "1g.10gb", 1), request("r", "2g.20gb", 1)],
        "SliceRequest r: is there more",
    ),
    "unknown model": ([llm(model={"uri": "pvc://m/secret"})], "'secret' is no well-known model"),
    "wrong spec": (
        [llm(scaling={"minReplicas": 3, "maxReplicas": 2})],
        "spec.scaling.minReplicas must not be above",
    ),
    "wrong field": ([llm(objectives={"ttft": {"milliseconds": 0}})], "objectives.ttft.milliseconds"),
    "longer than the model": ([llm(traffic={"inputTokens": {"mean": 10**6}})], "traffic"),
    "two deployments": ([llm(), llm()], "LLMDeployment chat: is there more than once"),
    "pool twice": ([pool(), pool()], "GPUPool p: is there more than once"),
    "pool without SKU": ([pool(nodes={"max": 3})], "GPUPool p: spec: sku: is missing"),
    "pool of another SKU": (
        [inventory(gpu("g0", pool="p")), pool(sku="L4", nodes={"max": 3})],
        "GPUPool p: spec: sku: conflicts",
    ),
    "pools that both claim a node": (
        [
            node("n0", {"team": "a", "tier": "x"}, gpu="2"),
            pool("p", nodeSelector={"team": "a"}),
            pool("q", nodeSelector={"tier": "x"}),
        ],
        "GPUPool q: claims node n0, which belongs to GPUPool p",
    ),
    "pool policy": ([pool(migPolicy="Never")], "spec.migPolicy: Input should be 'Ignore'"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_in_one_line(planner, case):
    documents, problem = CASES[case]
    line = planner.refused(*documents)

    assert problem in line


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--what-if", "gpu=3"), "--what-if: 'gpu=3' is none of add-gpu"),
        (("--what-if", "remove-gpu=zz"), "no GPU is called 'zz'"),
        (("--what-if", "remove-node=zz"), "no GPU is on a node 'zz'"),
        (("--what-if", "add-gpu=H100-80GB-SXM:x"), "'x' is not a number of GPUs"),
        (("--what-if", "add-gpu=H100-80GB-SXM:1,rack=3"), "add-gpu has no 'rack'"),
        (("--what-if", "price=H100-80GB-SXM:-1"), "must be from 0 to"),
        (("--what-if", "price=H100-80GB-SXM:nan"), "is not a number"),
        (("--what-if", "objective=zz:ttft=3"), "no LLMDeployment is called 'zz'"),
        (("--what-if", "objective=zz"), "must be NAME:ttft|tpot=NUMBER"),
        (("--explain", "zz"), "--explain: 'zz' is no LLMDeployment: there is none"),
        (("--time-limit", "0"), "--time-limit: must be above 0"),
        (("--time-limit", "nan"), "--time-limit: must be above 0"),
        (("--move-cost", "-1"), "--move-cost: must be between 0"),
        (("--move-cost", "nan"), "--move-cost: must be between 0"),
        (("--move-budget", "-1"), "--move-budget: must be between 0"),
        (("--horizon", "0"), "--horizon: must be between"),
        (("--model-facts", "chat"), "--model-facts: 'chat' is not NAME=MODEL"),
        (("--model-facts", "chat=nothing-known"), "is neither a path that exists nor a well-known model"),
        (("--picture", "x.gif"), "must end in .svg or .png"),
        (("--picture", "/nowhere/at/all/x.svg"), "cannot write"),
        (("-f", "/nowhere/at/all.yaml"), "--file: cannot read '/nowhere/at/all.yaml'"),
        (("-f", "/"), "is a directory"),
    ],
)
def test_bad_flags_are_refused_in_one_line(planner, flags, problem):
    assert problem in planner.refused(inventory(ONE), flags=flags)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file has no document"),
        ("a: [", "not YAML"),
        ("{", "not YAML"),
        ("\x00", "not YAML"),
        ("3", "not an object"),
    ],
)
def test_files_that_are_no_documents_are_refused(tmp_path, text, problem):
    path = tmp_path / "bad.yaml"
    path.write_text(text)

    status, out, err = run("plan", "-f", path)

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert problem in err


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_bytes(b"\xff\xfe\x00\x01")

    status, _, err = run("plan", "-f", path)

    assert (status, err.count("\n")) == (2, 1)


leaves = (
    st.none() | st.booleans() | st.integers(-9, 9**20) | st.floats() | st.text(max_size=8) | st.just(H100)
)
keys = st.sampled_from(
    [
        "id",
        "node",
        "sku",
        "instances",
        "profile",
        "start",
        "owner",
        "count",
        "gpus",
        "spec",
        "free",
        "prices",
        "x",
    ]
)
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4)
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["Inventory", "SliceRequest", "GPUPool", "LLMDeployment", "Node", "Pod"]),
    spec=trees,
    top=st.booleans(),
)
def test_whatever_a_document_holds_there_is_an_answer_or_one_line(planner, kind, spec, top):
    document = {"kind": kind, "metadata": {"name": "n"}}
    document |= {"spec": spec} if top or not isinstance(spec, dict) else spec

    status, out, err = planner.run(document, flags=("-o", "json"))

    assert (status, err.count("\n")) in {(0, 0), (2, 1)}, err
    assert bool(out) == (status == 0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 50_000, "fleet.yaml:1: not YAML: more than 200 levels deep"),
        ('{"a":' * 50_000, "fleet.yaml:1: not YAML: more than 200 levels deep"),
        ("- " * 50_000 + "x", "fleet.yaml:1: not YAML: more than 200 levels deep"),
        (
            "kind: List\nitems: &x\n- kind: List\n  items: *x\n",
            "fleet.yaml:3: not YAML: an alias contains itself",
        ),
        ("kind: Inventory\ngpus: []\ngpus: []\n", "fleet.yaml:3: not YAML: the key 'gpus' is there twice"),
        ('{"kind": "Inventory", "gpus": [], "gpus": []}', "the key 'gpus' is there twice"),
    ],
)
def test_text_that_would_end_the_process_or_lose_what_it_says_is_refused(tmp_path, text, problem):
    path = tmp_path / "fleet.yaml"
    path.write_text(text)

    status, out, err = run("plan", "-f", path)

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert problem in err


def test_a_merged_key_may_be_set_again(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "kind: Inventory\ngpus:\n- &one {id: a, sku: L4}\n- {<<: *one, id: b}\n- {id: c, <<: *one}\n"
    )

    status, out, _ = run("plan", "-f", path)

    assert status == 0
    assert "3 L4 empty" in out


@pytest.mark.parametrize(
    "text", ["kind: WORD", "kind: Inventory\nprices:\n  ? WORD\n  : 1", "kind: Inventory\n? WORD\n: 1"]
)
def test_a_word_of_a_million_letters_is_refused_in_one_short_line(tmp_path, text):
    path = tmp_path / "long.yaml"
    path.write_text(text.replace("WORD", "k" * 1_000_000))

    status, out, err = run("plan", "-f", path)

    assert (status, out) == (2, "")
    assert len(err) < 400 + len(str(path))

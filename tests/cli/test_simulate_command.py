"""`tangram simulate`: ten minutes of a packaged trace on a small fleet, in every form of output."""

import functools
import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from tangram.cli.main import main
from tangram.cli.simulate import command, plot
from tangram.cli.simulate.trace_files import read_trace

EXAMPLES = Path(__file__).parents[2] / "examples"
FLEET = EXAMPLES / "simulate" / "fleet.yaml"
TWO_MODELS = EXAMPLES / "simulate" / "two-gpu-models.yaml"
CHAT = next(yaml.safe_load_all(FLEET.read_text()))
PACKAGED = "azure2023_conv"
CSV = "arrival_s,input_tokens,output_tokens\n"


@pytest.fixture(scope="module", autouse=True)
def outcomes():
    """A packaged trace is read once, and equal terms are simulated once, whatever is printed of them.

    `clear()` has the next run simulated in any case.
    """
    once, kept, simulated = functools.cache(read_trace), {}, command.simulated

    def read(source):
        return once(source) if source == PACKAGED else read_trace(source)

    def simulate_once(fleet, traces, *terms_and_prices, progress):
        key = repr((fleet, terms_and_prices, {name: id(trace) for name, trace in traces.items()}))
        if key not in kept:
            kept[key] = (
                simulated(fleet, traces, *terms_and_prices, progress),
                traces,
            )  # kept: no id comes again
        return kept[key][0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "read_trace", read)
        patch.setattr(command, "simulated", lambda *given: simulate_once(*given[:-1], progress=given[-1]))
        yield kept


@pytest.fixture
def simulate(capsys):
    """Runs the command; returns what it prints."""

    def run(*options, files=(FLEET,), trace=PACKAGED, to="10m"):
        argv = ["simulate", *(part for file in files for part in ("-f", str(file)))]
        argv += ["--trace", trace, *(("--to", to) if to else ()), *map(str, options)]
        status = main(argv)
        out, err = capsys.readouterr()
        assert status == 0, err
        return out

    return run


@pytest.fixture
def document(simulate):
    def run(*options, **given):
        return json.loads(simulate("-o", "json", *options, **given))

    return run


def written(folder, name, *documents):
    file = folder / name
    file.write_text("---\n".join(yaml.safe_dump(document) for document in documents))
    return file


def deployment(name, **spec):
    return {**CHAT, "metadata": {"name": name}, "spec": {**CHAT["spec"], **spec}}


def inventory(*gpus):
    return {"apiVersion": CHAT["apiVersion"], "kind": "Inventory", "spec": {"gpus": list(gpus)}}


def gpu(name, *owners, **fields):
    instances = [
        {"profile": "3g.40gb", "start": 4 * place} | ({"owner": owner} if owner else {})
        for place, owner in enumerate(owners)
    ]
    return {"id": name, "node": "n", "sku": "A100-80GB-SXM", "instances": instances} | fields


# -- what it prints ------------------------------------------------------------------------------------------


def test_the_table_says_what_it_cost_and_which_requests_it_failed(simulate):
    out = simulate("--compare")

    assert re.search(
        r"^chat on A100-80GB-SXM:3g.40gb. Law tangram, 2867 requests in 10:00 min: .* cost \$\d", out
    )
    for title in ("BOTH", "WORST 5 MIN TTFT", "GPU-HOURS", "REPLICAS MIN/MEAN/MAX", "RECOVERY"):
        assert title in out
    assert re.search(r"^chat would have failed \d+ of 2,867 requests", out, re.MULTILINE)
    assert re.search(
        r"^Static, for the busiest five minutes \(\d+ replicas?\): attainment", out, re.MULTILINE
    )
    assert re.search(r"^Static, for the mean load \(\d+ replicas?\): attainment", out, re.MULTILINE)
    assert "Start times are assumed" in out


def test_the_document_adds_up(document):
    found = document()

    (seed,) = found["seeds"]
    (chat,) = seed["deployments"]
    assert (found["law"], chat["name"], chat["requests"]) == ("tangram", "chat", 2867)
    assert found["shapes"] == {"chat": "A100-80GB-SXM:3g.40gb x1"}
    assert sum(chat["verdicts"].values()) == sum(window["requests"] for window in chat["windows"]) == 2867
    assert sum(window["usd"] for window in chat["windows"]) == pytest.approx(chat["usd"], rel=1e-5)
    assert seed["usd"] == chat["usd"] > 0
    shares = {name: share["share"] for name, share in chat["attainment"].items()}
    assert 0.5 < shares["joint"] <= min(shares["ttft"], shares["tpot"]) <= 1
    assert all(share["worst_window"]["share"] <= share["share"] for share in chat["attainment"].values())
    assert chat["replicas"]["min"] <= chat["replicas"]["mean"] <= chat["replicas"]["max"] <= 16


def test_yaml_has_what_json_has(simulate, document):
    assert yaml.safe_load(simulate("-o", "yaml")) == document()


def test_equal_options_give_the_same_bytes(simulate, outcomes):
    first = simulate("-o", "json", "--seed", 3)
    outcomes.clear()

    assert simulate("-o", "json", "--seed", 3) == first


@pytest.mark.parametrize("law", ["tangram", "static=3", "hpa=0.3", "benchmarks.autoscaling.laws:knative=0.5"])
def test_a_law_is_known_by_its_name_or_by_its_module(document, law):
    found = document("--law", law, to="2m")

    assert found["law"] == law
    assert found["seeds"][0]["deployments"][0]["requests"] > 300


def test_a_static_law_keeps_its_number_and_costs_it(document):
    (chat,) = document("--law", "static=5")["seeds"][0]["deployments"]

    assert chat["replicas"] == {"min": 5, "mean": 5, "max": 5}
    assert chat["starts"] == 0
    assert chat["gpu_hours"] == pytest.approx(5 * 0.5 * 600 / 3600, rel=0.01)  # half of the memory each


def test_seeds_are_runs_of_their_own_with_resampled_requests(document, simulate):
    found = document("--seeds", 3, "--law", "static=4", to="6m")["seeds"]

    assert [seed["seed"] for seed in found] == [0, 1, 2]
    assert len({seed["deployments"][0]["requests"] for seed in found}) > 1
    assert document("--seed", 2, "--law", "static=4", to="6m")["seeds"] == found[2:]
    assert re.search(r"would have cost \$[\d.]+ to \$[\d.]+\.", simulate("--seeds", 2, to="6m"))


def test_the_comparison_is_with_the_peak_and_with_the_mean(document):
    found = document("--compare", to="40m")

    peak, mean = found["compared"]
    assert (peak["sized_for"], mean["sized_for"]) == ("peak", "mean")
    assert peak["deployments"][0]["replicas"] > mean["deployments"][0]["replicas"]
    assert peak["usd"] > mean["usd"]
    assert peak["deployments"][0]["attainment"] > mean["deployments"][0]["attainment"]


def test_window_rate_and_duration_choose_the_requests(document):
    def requests(*options, **given):
        return document("--law", "static=4", *options, **given)["seeds"][0]["deployments"][0]["requests"]

    whole, first = requests(to="6m"), requests(to="3m")
    assert whole == first + requests("--from", "180", to="360s")
    assert requests("--duration", "3m", to="6m") == first
    assert requests("--rate-factor", 2, to="6m") == 2 * whole
    assert requests("--rate-factor", 0.5, to="6m") == pytest.approx(whole / 2, rel=0.1)


def test_longer_starts_fail_more_requests(document):
    def failed(seconds):
        options = "--law", "hpa", "--start-seconds", seconds, "--rate-factor", 2
        return document(*options, to="15m")["seeds"][0]["deployments"][0]

    slow, fast = failed(600), failed(5)
    assert slow["attainment"]["joint"]["share"] < fast["attainment"]["joint"]["share"]


@pytest.mark.parametrize("router", ["random", "round-robin", "least-outstanding"])
def test_every_router_serves_all_requests(document, router):
    (chat,) = document("--router", router, "--law", "static=6", to="6m")["seeds"][0]["deployments"]

    assert set(chat["verdicts"]) <= {"attained", "TTFT", "TPOT", "infeasible"}


def test_a_bar_shows_on_a_terminal_alone(monkeypatch, simulate, outcomes):
    outcomes.clear()
    drawn = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("click._termui_impl.ProgressBar.render_progress", lambda bar: drawn.append(bar.pos))

    simulate(to="6m")

    assert drawn[0] == 0
    assert drawn[-1] == 1000
    assert drawn == sorted(drawn)


# -- fleets --------------------------------------------------------------------------------------------------


def test_each_llmdeployment_has_its_own_trace(document, tmp_path):
    file = written(tmp_path, "f.yaml", deployment("chat"), deployment("code"))
    gpus = written(tmp_path, "g.yaml", inventory(*(gpu(f"g{n}", None, None) for n in range(4))))

    found = document(
        "--trace", "code=azure2023_code", "--law", "static=4", files=(file, gpus), trace="chat=azure2023_conv"
    )

    chat, code = found["seeds"][0]["deployments"]
    assert (chat["name"], chat["requests"]) == ("chat", 2867)
    assert (code["name"], code["replicas"]["max"]) == ("code", 4)
    assert code["requests"] != chat["requests"]
    assert found["seeds"][0]["usd"] == pytest.approx(chat["usd"] + code["usd"], rel=1e-5)


def test_devices_of_others_stay_held_and_those_without_a_trace_are_named(document, tmp_path):
    file = written(tmp_path, "f.yaml", deployment("chat"), deployment("other"))
    held = inventory(gpu("g0", "other", "chat"), gpu("g1", "default/some-pod", None))

    found = document(
        "--law", "static=4", files=(file, written(tmp_path, "g.yaml", held)), trace="chat=azure2023_conv"
    )

    changes = found["seeds"][0]["deployments"][0]["replica_changes"]
    assert max(change["desired"] for change in changes) == 4
    assert max(change["ready"] for change in changes) == 2
    assert any("other has no trace: it is left out" in note for note in found["notes"])


def test_nodes_and_pods_of_kubectl_are_a_fleet(document, tmp_path):
    node = {
        "kind": "Node",
        "metadata": {"name": "n", "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
        "status": {"allocatable": {"nvidia.com/gpu": "4"}, "capacity": {"nvidia.com/gpu": "4"}},
    }
    pod = {
        "kind": "Pod",
        "metadata": {"name": "theirs", "namespace": "default"},
        "spec": {"nodeName": "n", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "3"}}}]},
        "status": {"phase": "Running"},
    }
    chat = deployment("chat", placement={})

    found = document("--law", "static=2", files=(written(tmp_path, "f.yaml", chat, node, pod),))

    assert found["shapes"] == {"chat": "H100-80GB-SXM:gpu x1"}
    assert max(c["ready"] for c in found["seeds"][0]["deployments"][0]["replica_changes"]) == 1


def test_a_snapshot_is_a_fleet(document):
    found = document(
        "--trace",
        "code=azure2023_code",
        files=(EXAMPLES / "plan" / "cluster.yaml",),
        trace="chat=azure2023_conv",
    )

    assert [d["name"] for d in found["seeds"][0]["deployments"]] == ["chat", "code"]
    assert found["shapes"]["chat"].startswith("H100-80GB-SXM")


def test_prices_of_gpus_and_of_the_user_decide_the_cost(document, tmp_path):
    def usd(*options, **fields):
        files = (written(tmp_path, "f.yaml", deployment("chat"), inventory(gpu("g0", None, None, **fields))),)
        return document("--law", "static=2", *options, files=files, to="6m")["seeds"][0]["usd"]

    prices = tmp_path / "prices.yaml"
    prices.write_text("A100-80GB-SXM: 10\n")

    assert usd(pricePerGPUHour=4) == pytest.approx(2 * usd(pricePerGPUHour=2), rel=1e-5)
    assert usd("--prices", prices) == pytest.approx(10 / 4 * usd(pricePerGPUHour=4), rel=1e-5)


# -- shapes and nodes that are lost --------------------------------------------------------------------------

LOST = ("--node-failure", "a100-b=5m", "--rate-factor", 4)


def test_replicas_and_cost_of_each_shape_add_up(document):
    (chat,) = document(*LOST, files=(TWO_MODELS,), to="15m")["seeds"][0]["deployments"]

    a100, h100 = chat["shapes"]
    assert (a100["shape"], h100["shape"]) == ("A100-80GB-SXM:gpu x1", "H100-80GB-SXM:gpu x1")
    assert a100["precision"] == h100["precision"] == "bf16"
    for figure in ("usd", "gpu_hours", "starts"):
        assert a100[figure] + h100[figure] == pytest.approx(chat[figure], rel=1e-5)
        assert h100[figure] > 0
    assert a100["replicas"]["mean"] + h100["replicas"]["mean"] == pytest.approx(chat["replicas"]["mean"])
    assert (h100["replicas"]["min"], h100["replicas"]["max"]) == (0, 3)
    for change in chat["replica_changes"]:
        for figure in ("ordered", "ready"):
            assert sum(shape[figure] for shape in change["shapes"]) == change[figure]
    ready = [{shape["shape"] for shape in c["shapes"] if shape["ready"]} for c in chat["replica_changes"]]
    assert ready[0] == {a100["shape"]}
    assert {a100["shape"], h100["shape"]} in ready


def test_the_table_has_a_row_for_each_shape_where_there_are_several(simulate):
    out = simulate(*LOST, files=(TWO_MODELS,), to="15m")

    assert out.startswith("chat on A100-80GB-SXM and H100-80GB-SXM. ")
    rows = dict(re.findall(r"^chat +0 +([A-Z]\S+) +[\d.]+ +[\d.]+ +(\d+/[\d.]+/\d+)", out, re.MULTILINE))
    assert rows.keys() == {"A100-80GB-SXM", "H100-80GB-SXM"}
    assert rows["H100-80GB-SXM"].endswith("/3")
    assert "SHAPE" not in simulate(to="6m")


def test_a_node_that_comes_back_takes_replicas_again(document):
    def ready(failure):
        options = "--law", "static=16", "--node-failure", failure
        changes = document(*options, to="15m")["seeds"][0]["deployments"][0]["replica_changes"]
        return [change["ready"] for change in changes]

    lost, back = ready("node-b=2m"), ready("node-b=2m-4m")
    assert (lost[0], min(lost), lost[-1]) == (16, 8, 8)
    assert (back[0], min(back), back[-1]) == (16, 8, 16)


# -- traces --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_traces_of_the_user_are_csv_or_json_lines(document, tmp_path, suffix):
    rows = [(3.0 * n, 500 + n, 50) for n in range(100)]
    keys = ("arrival_s", "input_tokens", "output_tokens")
    lines = [",".join(map(str, row)) for row in rows]
    file = tmp_path / f"trace.{suffix}"
    if suffix == "csv":
        file.write_text(CSV + "\n".join(lines))
    else:
        file.write_text("\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows))

    assert document(trace=str(file), to=None)["seeds"][0]["deployments"][0]["requests"] == 100


def test_a_single_request_is_a_trace(document, tmp_path):
    file = tmp_path / "one.csv"
    file.write_text(CSV + "0,100,10\n")

    (chat,) = document(trace=str(file), to=None)["seeds"][0]["deployments"]

    assert chat["verdicts"] == {"attained": 1}


def test_without_objectives_every_served_request_counts(document, tmp_path):
    spec = {key: value for key, value in CHAT["spec"].items() if key != "objectives"}
    file = written(
        tmp_path, "f.yaml", {**CHAT, "spec": spec}, inventory(*(gpu(f"g{n}", None, None) for n in range(4)))
    )

    (chat,) = document("--compare", files=(file,), to="6m")["seeds"][0]["deployments"]

    assert chat["attainment"]["joint"]["share"] == 1.0


# -- plots ---------------------------------------------------------------------------------------------------


def test_a_png_is_drawn(simulate, tmp_path):
    simulate("--plot", tmp_path / "run.png", to="6m")

    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize("suffix", ["png", "html"])
def test_a_plot_has_the_replicas_of_each_shape(monkeypatch, simulate, tmp_path, suffix):
    figures = []
    drawn = plot._figure
    monkeypatch.setattr(plot, "_figure", lambda outcome: figures.append(drawn(outcome)) or figures[-1])

    simulate(*LOST, "--plot", tmp_path / f"run.{suffix}", files=(TWO_MODELS,), to="15m")

    labels = [text.get_text() for text in figures[0].axes[1].get_legend().get_texts()]
    assert labels == ["chat on A100-80GB-SXM", "chat on H100-80GB-SXM"]
    if suffix == "html":
        page = (tmp_path / "run.html").read_text()
        assert [f"<td>on {label[8:]}</td>" in page for label in labels] == [True, True]


def test_an_html_page_has_figure_and_table_and_needs_nothing_from_elsewhere(simulate, outcomes, tmp_path):
    files = (written(tmp_path, "f.yaml", deployment("chat"), inventory(gpu("g0", None, None))),)
    for name in ("a.html", "b.html"):
        simulate("--plot", tmp_path / name, files=files, to="6m")
        outcomes.clear()

    page = (tmp_path / "a.html").read_text()
    assert page.count("<svg") == 1
    assert "<td>chat</td>" in page
    assert "<script" not in page
    references = re.findall(r"""(?:href|src)\s*=\s*["']([^"']*)|url\(([^)]*)\)|@import""", page)
    assert references
    assert all((href or url).startswith("#") for href, url in references)
    assert page == (tmp_path / "b.html").read_text()

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.cli.main import main

CHAT = ("size", "--model", "llama-3.1-8b", "--ttft-ms", "500", "--tpot-ms", "40", "--rps", "4")
FEW = ("--sku", "h100-80gb-sxm", "--sku", "l4", "--sku", "gb200")


@cache
def run(*argv, columns=160):
    """Exit status, standard output and standard error, as on a terminal of that width."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setenv("COLUMNS", str(columns))
        status = main([str(word) for word in argv])
    return status, out.getvalue(), err.getvalue()


def as_document(*argv):
    status, out, err = run(*argv, "-o", "json")
    assert (status, err) == (0, "")
    return json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no number"))


def shown_rows(out):
    """Rank and GPU of the rows of the first table."""
    return re.findall(r"^ *(\d+)  (\S+) ", out, re.MULTILINE)


def test_the_table_says_what_an_engineer_asks_for():
    status, out, err = run(*CHAT)

    assert (status, err) == (0, "")
    for title in ("GPU OR SLICE", "TP", "PREC", "W+KV+BUF+FREE GiB", "CONC", "REQ/S", "TTFT P90", "TPOT P90"):
        assert title in out
    for title in ("WALL", "REPL", "$/h", "$/1M", "REJECTED BY", "WHY", "SERVES WITH"):
        assert title in out
    assert "default list price" in out
    assert "TTFT <= 500 ms at P90 and TPOT <= 40 ms at P90" in out


def test_a_table_shows_the_cheapest_of_each_gpu_and_all_shows_all():
    found = as_document(*CHAT)

    short, long = shown_rows(run(*CHAT)[1]), shown_rows(run(*CHAT, "--all")[1])

    assert len(short) == len({name for _, name in short}) <= 15
    assert short[0][0] == "1"
    assert [int(rank) for rank, _ in long] == list(range(1, len(found["rows"]) + 1))


def test_all_lists_every_rejection():
    found = as_document(*CHAT, *FEW)
    _, out, _ = run(*CHAT, *FEW, "--all")

    listed = out[out.index("Rejected:") :].splitlines()[2:]
    assert len(listed) == len(found["rejected"])


def test_rows_of_a_document_agree_with_each_other():
    found = as_document(*CHAT)

    costs = [row["usd_per_hour"] for row in found["rows"]]
    assert costs == sorted(costs)
    for rank, row in enumerate(found["rows"], 1):
        memory = row["memory_gib_per_gpu"]
        assert row["rank"] == rank
        parts = memory["weights"] + memory["kv_used"] + memory["buffers"] + memory["free"]
        assert parts == pytest.approx(memory["total"], rel=2e-3)
        assert row["ttft_ms"] <= 500
        assert row["tpot_ms"] <= 40
        assert row["replicas"] * row["max_rps_per_replica"] >= 4 * 0.999


def test_yaml_holds_what_json_holds():
    _, out, _ = run(*CHAT, *FEW, "-o", "yaml")

    assert yaml.safe_load(out) == as_document(*CHAT, *FEW)


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        (("--sku", "H100_SXM5"), lambda row: row["sku"] == "H100-80GB-SXM"),
        (("--precision", "awq"), lambda row: row["precision"] == "int4"),
        (("--precision", "BF16"), lambda row: row["precision"] == "bf16"),
        (("--mig", "required"), lambda row: row["profile"] is not None),
        (("--mig", "forbidden"), lambda row: row["profile"] is None),
        (("--mig", "3g.40gb"), lambda row: row["profile"] == "3g.40gb"),
        (("--tp", "2", "--tp", "4"), lambda row: row["tensor_parallel"] in {2, 4} and not row["profile"]),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "rows",
)
def test_filters_keep_what_they_name_and_nothing_else(filters, kept):
    everything, found = as_document(*CHAT), as_document(*CHAT, *filters)

    assert found["rows"]
    assert all(kept(each) for each in found["rows"] + found["rejected"])
    named = [{**row, "rank": 0} for row in everything["rows"] if kept(row)]
    assert all(row in [{**each, "rank": 0} for each in found["rows"]] for row in named)


def test_percentiles_are_named_where_they_are_shown():
    _, out, _ = run(*CHAT, *FEW, "--percentile", "99")

    assert "TTFT P99" in out
    assert "at P99" in out


def test_own_prices_bring_in_what_has_none(tmp_path):
    (tmp_path / "prices.yaml").write_text("GB200-186GB: 0.01\n")

    without = as_document(*CHAT, *FEW)
    found = as_document(*CHAT, *FEW, "--prices", tmp_path / "prices.yaml")

    assert "price" in {each["constraint"] for each in without["rejected"]}
    assert found["rows"][0]["sku"] == "GB200-186GB"
    assert found["rows"][0]["price_is_default"] is False


def test_a_row_is_simulated_beside_its_prediction():
    argv = (*CHAT, "--sku", "l40s", "--simulate", "1")

    _, out, _ = run(*argv)
    simulation = as_document(*argv)["simulation"]

    assert "TTFT simulation" in out
    assert simulation["rank"] == 1
    assert simulation["requests"] == 10_000
    for name in ("ttft_ms", "tpot_ms"):
        for each in simulation[name].values():
            assert each["simulation"] > 0
            assert 0.4 < each["table"] / each["simulation"] < 2.5


def test_where_nothing_serves_it_says_so_and_why():
    status, out, _ = run(*CHAT, *FEW, "--tpot-ms", "0.01")

    assert status == 0
    assert "No GPU or slice of the catalog serves" in out
    assert "Rejected by memory unknown; none of the changes tried helps: GB200-186GB:" in out
    assert "SERVES WITH" in out
    assert re.search(r"TPOT \d", out)


def test_a_config_file_and_a_directory_are_the_same_model(tmp_path):
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))

    directory = as_document("size", "--model", tmp_path, *FEW)
    file = as_document("size", "--model", tmp_path / "config.json", *FEW)

    assert directory["rows"] == file["rows"]
    assert directory["model"]["layers"] == 16


WRONG = [
    ((), "--model"),
    (("--model", "/nowhere/config.json"), "--model"),
    (("--model", "llama-3.1-8b", "--rps", "0"), "--rps"),
    (("--model", "llama-3.1-8b", "--rps", "-4"), "--rps"),
    (("--model", "llama-3.1-8b", "--rps", "nan"), "--rps"),
    (("--model", "llama-3.1-8b", "--rps", "inf"), "--rps"),
    (("--model", "llama-3.1-8b", "--rps", "four"), "--rps"),
    (("--model", "llama-3.1-8b", "--input", "0"), "--input"),
    (("--model", "llama-3.1-8b", "--input", "1.5"), "--input"),
    (("--model", "llama-3.1-8b", "--input", "9" * 40), "--input"),
    (("--model", "llama-3.1-8b", "--input", "200000"), "input"),
    (("--model", "llama-3.1-8b", "--output", "-1"), "--output"),
    (("--model", "llama-3.1-8b", "--ttft-ms", "0"), "--ttft-ms"),
    (("--model", "llama-3.1-8b", "--tpot-ms", "nan"), "--tpot-ms"),
    (("--model", "llama-3.1-8b", "--percentile", "101"), "--percentile"),
    (("--model", "llama-3.1-8b", "--cv", "-1"), "--cv"),
    (("--model", "llama-3.1-8b", "--cv", "1e9"), "--cv"),
    (("--model", "llama-3.1-8b", "--tp", "3"), "--tp"),
    (("--model", "llama-3.1-8b", "--sku", "H1000"), "--sku"),
    (("--model", "llama-3.1-8b", "--precision", "fp7"), "--precision"),
    (("--model", "llama-3.1-8b", "--kv-precision", "int2"), "--kv-precision"),
    (("--model", "llama-3.1-8b", "--mig", "9g.99gb"), "--mig"),
    (("--model", "llama-3.1-8b", "--mig", "required", "--tp", "2"), "--mig"),
    (("--model", "llama-3.1-8b", "--mig", "required", "--sku", "l4"), "--mig"),
    (("--model", "llama-3.1-8b", "--mig", "3g.40gb", "--sku", "a30"), "--mig"),
    (("--model", "llama-3.1-8b", "--max-model-len", "100"), "--max-model-len"),
    (("--model", "llama-3.1-8b", "--max-model-len", "1000000"), "max-model-len"),
    (("--model", "llama-3.1-8b", "--max-running", "0"), "--max-running"),
    (("--model", "llama-3.1-8b", "--engine-version", "1"), "--engine-version"),
    (("--model", "llama-3.1-8b", "--sku", "l4", "--simulate", "0"), "--simulate"),
    (("--model", "llama-3.1-8b", "--sku", "l4", "--simulate", "9999"), "--simulate"),
    (("--model", "llama-3.1-8b", "--prices", "/nowhere"), "--prices"),
    (("--model", "llama-3.1-8b", "--frobnicate"), "--frobnicate"),
    (("--model", "llama-3.1-8b", "stray"), "stray"),
]


@pytest.mark.parametrize(("argv", "field"), WRONG, ids=str)
def test_wrong_input_ends_in_one_line_with_the_flag_and_status_2(argv, field):
    status, out, err = run("size", *argv)

    assert status == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("tangram: ")
    assert field in err


FLAGS = {
    "--rps": st.floats().map(str),
    "--ttft-ms": st.floats().map(str),
    "--tpot-ms": st.floats().map(str),
    "--cv": st.floats().map(str),
    "--input": st.integers(-10, 1 << 70).map(str) | st.integers(1, 5000).map(str),
    "--output": st.integers(-10, 1 << 70).map(str) | st.integers(1, 5000).map(str),
    "--max-model-len": st.integers(-10, 1 << 70).map(str) | st.integers(1, 200_000).map(str),
    "--max-running": st.integers(-10, 1 << 40).map(str),
    "--percentile": st.sampled_from(["50", "90", "95", "99"]) | st.text(max_size=4),
    "--tp": st.sampled_from(["1", "2", "4", "8", "3", "-1", "x"]),
    "--precision": st.sampled_from(["bf16", "fp8", "int8", "nvfp4", "int4_g64", "int4_g0", "fp32"])
    | st.text(),
    "--kv-precision": st.sampled_from(["bf16", "fp8", "fp32"]) | st.text(),
    "--engine": st.sampled_from(["vllm", "sglang", "trtllm"]) | st.text(),
    "--engine-version": st.sampled_from(["0.18.0", "9"]) | st.text(),
    "--mig": st.sampled_from(["allowed", "required", "forbidden", "2g.12gb"]) | st.text(),
    "--sku": st.sampled_from(["a30", "l4"]) | st.text(),
    "--simulate": st.integers(-2, 40).map(str),
    "--prices": st.text(),
    "--model": st.text(),
    "-o": st.sampled_from(["json", "yaml", "table", "csv"]),
}


@settings(max_examples=60, deadline=None)
@given(
    given=st.lists(
        st.sampled_from(sorted(FLAGS)).flatmap(lambda flag: st.tuples(st.just(flag), FLAGS[flag])), max_size=4
    )
)
def test_whatever_the_flags_say_it_is_an_answer_or_one_line(given):
    argv = ["size", "--model", "qwen3-0.6b", "--sku", "a30", *(word for pair in given for word in pair)]

    status, out, err = run(*argv)

    assert "nan" not in re.sub(r"NVIDIA|nano", "", out).split()
    if status == 0:
        assert err == ""
    else:
        assert status == 2
        assert re.fullmatch(r"tangram: .+\n", err)


@pytest.mark.parametrize("columns", [80, 100, 120, 160])
def test_nothing_is_wider_than_a_terminal(columns):
    _, out, _ = run(*CHAT, "--sku", "rtx-pro-6000-server", "--sku", "gb200", columns=columns)

    assert max(map(len, out.splitlines())) <= columns


TANGRAM = Path(sys.executable).with_name("tangram")
QUIET = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}


@pytest.mark.parametrize(
    ("engine", "mark", "said"),
    [
        ((), "", "Speed: fitted to all engines ("),
        (("--engine", "vllm"), "", "published measurements of vllm"),
        (("--engine", "abacus"), r"\*", "There is no measurement of abacus. Speed: fitted to all engines ("),
    ],
)
def test_speed_is_marked_where_the_engine_that_was_named_is_unknown(engine, mark, said):
    _, out, _ = run(*CHAT, "--sku", "h100-80gb-sxm", "--mig", "forbidden", *engine)

    assert re.search(rf"^ *1  H100-80GB-SXM{mark} ", out, re.MULTILINE)
    assert said in " ".join(out.split())


def started(*argv, env=QUIET):
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


def test_the_command_answers_with_its_exit_status():
    good = started(TANGRAM, *CHAT, *FEW)
    bad = started(TANGRAM, *CHAT, "--rps", "nan")

    assert (good.returncode, good.stderr) == (0, "")
    assert "\x1b" not in good.stdout
    assert "W+KV+BUF+FREE GiB" in good.stdout
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "tangram: --rps: must be from 1e-06 to 1e+06, not nan\n"


def test_a_reader_that_leaves_early_is_not_a_crash():
    found = started("bash", "-c", f"{TANGRAM} {' '.join(CHAT)} --all | head -1")

    assert found.stdout.startswith("Llama-3.1-8B")
    assert found.stderr == ""


def test_a_locale_without_the_characters_is_not_a_crash():
    found = started(TANGRAM, *CHAT, *FEW, env={**QUIET, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"})

    assert (found.returncode, found.stderr) == (0, "")


def test_sizing_loads_no_cluster_client_no_solver_and_no_plots():
    code = (
        "import sys; from tangram.cli.main import main; main(sys.argv[1:]);"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )

    found = started(sys.executable, "-c", code, *CHAT, *FEW)

    loaded = set(found.stdout.splitlines()[-1].split())
    assert "tangram" in loaded
    assert not loaded & {"kopf", "kubernetes", "pydantic", "ortools", "matplotlib", "numpy", "httpx"}

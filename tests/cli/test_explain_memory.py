"""`tangram explain-memory`: a bar, its terms, and one line for whatever is wrong."""

import json
import sys

import click
import pytest
import yaml

from tangram.cli.explain_memory.account import MemoryTerm
from tangram.cli.explain_memory.memory_bar import bar, layout
from tangram.cli.main import main
from tests.catalog.real_checkpoints import real_checkpoints

LLAMA = ("--model", "llama-3.1-8b", "--sku", "h100")


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")


def run(capsys, *argv):
    status = main(["explain-memory", *argv])
    return status, *capsys.readouterr()


def document(capsys, *argv):
    status, out, _ = run(capsys, *argv, "-o", "json")
    assert status == 0
    return json.loads(out)


def test_every_term_is_named_with_its_gib(capsys):
    status, out, _ = run(capsys, *LLAMA, "--max-model-len", "8192")

    assert status == 0
    found = {
        line.split()[1]: line.split()[2] for line in out.splitlines() if line[1:3] == "  " and line[0] != " "
    }
    assert found["weights"] == "14.96"
    assert {"reserve", "context*", "graphs*", "buffers", "activations", "weights", "KV"} <= set(found)
    assert "Fits." in out


def test_the_terms_of_the_document_fill_the_memory(capsys):
    found = document(capsys, *LLAMA)

    assert found["fits"]
    assert sum(term["bytes"] for term in found["terms"]) == found["total_bytes"] == 81559 * 2**20
    assert {term["name"] for term in found["terms"] if term["unverified"]} == {"context", "graphs"}


def test_yaml_says_what_json_says(capsys):
    _, out, _ = run(capsys, *LLAMA, "-o", "yaml")

    assert yaml.safe_load(out) == document(capsys, *LLAMA)


def test_requests_of_the_asked_length_are_counted(capsys):
    found = document(capsys, *LLAMA, "--input", "7000", "--output", "1000", "--max-num-seqs", "500")

    cache = found["kv_cache"]
    assert cache["concurrent_requests"] == cache["bytes"] // (8000 * 131072)


def test_what_does_not_fit_says_by_how_much_and_what_would_help(capsys):
    argv = (*LLAMA, "--profile", "1g.10gb")
    found = document(capsys, *argv)
    status, out, _ = run(capsys, *argv)

    assert status == 0
    assert not found["fits"]
    assert found["missing_bytes"] > 0
    assert {"--profile": "3g.40gb"} in found["would_fit_with"]
    assert "tokens lacks 23.7 GiB." in out
    assert "the memory ends here, at 9.8 GiB" in out


def test_what_is_told_to_help_does(capsys):
    found = document(capsys, *LLAMA, "--profile", "1g.10gb")

    for each in found["would_fit_with"]:
        changed = [*LLAMA, "--profile", "1g.10gb"]
        for option, value in each.items():
            changed += [option, value]  # the last one given wins
        assert document(capsys, *changed)["fits"], each


def test_facts_without_a_source_are_marked(capsys):
    _, out, _ = run(capsys, "--model", "llama-3.1-8b", "--sku", "A100-80GB-SXM")

    assert "on A100-80GB-SXM*" in out
    assert "* A100-80GB-SXM: no reliable source for memory" in out
    assert "* context, graphs and NCCL are estimates" in " ".join(out.split())


@pytest.mark.parametrize("columns", ["1", "40", "80", "300"])
def test_the_bar_is_as_wide_as_the_terminal_at_most(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = run(capsys, *LLAMA)

    drawn = next(line for line in out.splitlines() if line.startswith("RR"))
    assert len(drawn) <= max(20, min(100, int(columns)))
    assert drawn.count("K") > drawn.count("W") > drawn.count("R") > 0


def test_on_a_terminal_the_bar_has_colours_and_one_letter_for_each_part(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "81")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    bar([MemoryTerm("weights", 3, "", "blue"), MemoryTerm("KV cache", 1, "", "green")], 4)

    coloured = capsys.readouterr().out
    assert click.unstyle(coloured) == f"W{'':59}K{'':19}\n"
    assert coloured.startswith(click.style("W", fg="black", bg="blue", reset=False))


@pytest.mark.parametrize(
    ("sizes", "total", "columns"),
    [([1, 1, 2], 4, [25, 25, 50]), ([50, 0], 100, [50, 0]), ([100, 100], 100, [50, 50]), ([], 0, [])],
)
def test_a_bar_is_to_scale(sizes, total, columns):
    assert layout(sizes, total, 100) == columns


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("", "--sku"),
        ("--sku nope", "--sku: no GPU is called 'nope'"),
        ("--sku h100 --profile 9g.9gb", "--profile: H100-80GB-SXM has no '9g.9gb'; it has 1g.10gb"),
        ("--sku L4 --profile 1g.10gb", "--profile: L4 does not support MIG"),
        ("--sku h100 --profile 1g.10gb --tp 2", "--profile: MIG slices have no peer-to-peer"),
        ("--sku h100 --tp 0", "--tp: 0"),
        ("--sku h100 --tp -1", "--tp: -1"),
        ("--sku h100 --tp 3", "--tp: 3 does not divide"),
        ("--sku h100 --tp 2.5", "--tp"),
        ("--sku h100 --weights fp7", "--weights: 'fp7' is not a precision of weights"),
        ("--sku A100-80GB-SXM --weights fp8", "--weights: A100-80GB-SXM cannot compute fp8"),
        ("--sku h100 --kv int3", "--kv: 'int3'"),
        ("--sku h100 --max-model-len 0", "--max-model-len: must be at least 2"),
        ("--sku h100 --max-model-len -7", "--max-model-len: must be at least 2"),
        ("--sku h100 --max-model-len 131073", "--max-model-len: 131073 is beyond the 131072 tokens"),
        ("--sku h100 --max-num-seqs 0", "--max-num-seqs: must be at least 1"),
        ("--sku h100 --max-num-batched-tokens 0", "--max-num-batched-tokens: must be at least 1"),
        ("--sku h100 --max-num-batched-tokens 63", "--max-num-batched-tokens: 63 is below --max-num-seqs 64"),
        ("--sku h100 --gpu-memory-utilization nan", "--gpu-memory-utilization: must be above 0"),
        ("--sku h100 --gpu-memory-utilization 0", "--gpu-memory-utilization: must be above 0"),
        ("--sku h100 --gpu-memory-utilization 1.01", "--gpu-memory-utilization: must be above 0"),
        ("--sku h100 --block-size 0", "--block-size: must be at least 1"),
        ("--sku h100 --block-size 2000", "--block-size: must be at most 1024"),
        ("--sku h100 --input 0", "--input: must be at least 1"),
        ("--sku h100 --output -3", "--output: must be at least 1"),
        ("--sku h100 --input 5000 --max-model-len 4096", "--input: 5000 + 1 tokens are longer"),
        ("--sku h100 --output 5000 --max-model-len 4096", "--output: 1 + 5000 tokens are longer"),
        ("--sku h100 -o xml", "xml"),
    ],
)
def test_whatever_is_wrong_is_one_line_and_status_2(capsys, argv, said):
    status, out, err = run(capsys, "--model", "llama-3.1-8b", *argv.split())

    assert status == 2
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def write_checkpoint(directory, repo):
    directory.mkdir()
    path = directory / "config.json"
    path.write_text(json.dumps(real_checkpoints()[repo].config), encoding="utf-8")
    return path


def test_a_checkpoint_that_other_runtimes_serve_is_sized_and_named(capsys, tmp_path):
    path = write_checkpoint(tmp_path / "hybrid", "Qwen/Qwen3.5-35B-A3B")
    options = ("--model", str(path), "--sku", "h200", "--max-model-len", "32768")

    status, out, _ = run(capsys, *options)

    assert status == 0
    text = " ".join(out.split())
    assert "One token takes 20 KiB of KV cache on each GPU." in text
    assert "A request of any length also keeps 61.4 MiB of state" in text
    assert "Other runtimes (vLLM, SGLang) serve this checkpoint. The bundled engine does not" in text
    model = document(capsys, *options)["model"]
    assert model["served_by_bundled_engine"] is False
    assert model["unverified"] == []
    assert document(capsys, *LLAMA)["model"]["served_by_bundled_engine"] is True


def test_yarn_stretches_the_context_that_may_be_asked_for(capsys, tmp_path):
    path = write_checkpoint(tmp_path / "stretched", "Qwen/Qwen3-8B")
    config = json.loads(path.read_text())
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    path.write_text(json.dumps(config | {"rope_scaling": rope}), encoding="utf-8")

    found = document(capsys, "--model", str(path), "--sku", "h100", "--max-model-len", "131072")
    status, _, err = run(capsys, "--model", str(path), "--sku", "h100", "--max-model-len", "131073")

    assert found["max_model_len"] == 131_072
    assert status == 2
    assert "131073 is beyond the 131072 tokens of context" in err

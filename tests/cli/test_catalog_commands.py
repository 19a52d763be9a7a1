import json

import pytest
import yaml

from tangram.catalog import gpu, skus
from tangram.cli.main import main


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")


def run(capsys, *argv):
    status = main(list(argv))
    return status, *capsys.readouterr()


def test_every_gpu_is_listed_with_price_range_and_sources(capsys):
    status, out, _ = run(capsys, "gpus")

    assert status == 0
    lines = {line.split()[0].rstrip("*"): line for line in out.splitlines() if line.strip()}
    for sku in skus():
        facts = gpu(sku)
        assert str(facts.memory_mib) in lines[sku]
        if facts.price_range:
            assert f"{facts.price_range[0]:.2f}-{facts.price_range[1]:.2f}" in lines[sku]
    assert "default list price" in out
    assert "override with --prices" in out
    assert "nebius:" in out


def test_recalled_facts_are_marked_and_explained(capsys):
    _, out, _ = run(capsys, "gpus")

    marked = {
        word.rstrip("*") for line in out.splitlines() for word in line.split()[:1] if word.endswith("*")
    }
    assert marked - {""} == {sku for sku in skus() if gpu(sku).unverified}
    assert "\n* From a data sheet" in out


def test_own_prices_replace_the_list_prices(capsys, tmp_path):
    (tmp_path / "prices.yaml").write_text("GB200-186GB: 9.25\n")

    _, out, _ = run(capsys, "gpus", "--prices", str(tmp_path / "prices.yaml"))

    (line,) = [line for line in out.splitlines() if line.startswith("GB200-186GB")]
    assert "9.25" in line
    assert "yours" in line


def test_slices_show_real_memory_sms_shares_and_starts(capsys):
    status, out, _ = run(capsys, "mig", "H100-80GB-SXM")

    assert status == 0
    (line,) = [line for line in out.splitlines() if " 3g.40gb " in line]
    assert line.split()[2:8] == ["40448", "60", "3/7", "4/8", "50%", "1.54"]
    assert " 0,4 " in line
    assert "cap-h100-sxm:" in out


def test_a_slice_of_doubtful_facts_is_marked(capsys):
    _, out, _ = run(capsys, "mig", "GB200-186GB")

    (line,) = [line for line in out.splitlines() if " 3g.93gb* " in line]
    assert " ?* " in line
    assert "\n* Derived from" in out


@pytest.mark.parametrize("name", ["h100-80gb-sxm", "H100_SXM5", "NVIDIA-H100-80GB-HBM3"])
def test_a_gpu_is_found_by_the_names_that_people_use(capsys, name):
    status, out, _ = run(capsys, "mig", name)

    assert status == 0
    assert "H100-80GB-SXM  1g.10gb" in out


def test_all_boards_are_listed_without_a_name(capsys):
    _, out, _ = run(capsys, "mig")

    listed = {line.split()[0] for line in out.splitlines() if line.split()[1:2] and "g." in line.split()[1]}
    assert listed == {sku for sku in skus() if gpu(sku).profiles}


@pytest.mark.parametrize("fmt", ["json", "yaml"])
def test_documents_hold_every_fact_with_its_marks_and_sources(capsys, fmt):
    load = json.loads if fmt == "json" else yaml.safe_load

    found = load(run(capsys, "gpus", "-o", fmt)[1])
    slices = load(run(capsys, "mig", "-o", fmt)[1])

    assert [each["sku"] for each in found] == list(skus())
    assert all(each["sources"] for each in found + slices)
    assert all(len(text) > 10 for each in found + slices for text in each["sources"].values())
    assert {each["sku"] for each in found if each["unverified"]} == {s for s in skus() if gpu(s).unverified}
    assert len(slices) == sum(len(gpu(sku).profiles) for sku in skus())


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["mig", "L4"], "L4 does not support MIG"),
        (["mig", "H100-80G-SXMM"], "nearest is H100-80GB-SXM"),
        (["mig", ""], "no GPU is called"),
        (["mig", "../../etc/passwd\n"], "no GPU is called"),
        (["gpus", "--prices", "/nowhere"], "is not a file"),
        (["gpus", "-o", "xml"], "xml"),
        (["mig", "a", "b"], "unexpected extra argument"),
    ],
)
def test_wrong_names_and_files_end_in_one_line_and_status_2(capsys, argv, says):
    status, out, err = run(capsys, *argv)

    assert status == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("tangram: ")
    assert says in err


@pytest.mark.parametrize("columns", [80, 100, 120])
@pytest.mark.parametrize("argv", [["gpus"], ["mig"], ["mig", "GB200-186GB"]])
def test_nothing_is_wider_than_the_terminal(monkeypatch, capsys, argv, columns):
    monkeypatch.setenv("COLUMNS", str(columns))

    _, out, _ = run(capsys, *argv)

    assert max(map(len, out.splitlines())) <= columns

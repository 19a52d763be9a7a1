"""What `tangram simulate` refuses: one line with the place, in bounded time and memory."""

import gzip
import json
import sys
import time
import tracemalloc
import zlib
from pathlib import Path

import pytest
import yaml

from tangram.catalog import InputError
from tangram.cli.main import main
from tangram.cli.simulate import simulation, trace_files
from tangram.cli.simulate.trace_files import read_trace
from tangram.simulator.traffic import trace_lines

FLEET = Path(__file__).parents[2] / "examples" / "simulate" / "fleet.yaml"
CSV = "arrival_s,input_tokens,output_tokens\n"


@pytest.fixture
def refused(capsys):
    """Runs the command; returns its one line on standard error."""

    def run(*options, file=FLEET, trace="azure2023_conv"):
        traces = () if trace is None else ("--trace", str(trace))
        status = main(["simulate", "-f", str(file), *traces, *map(str, options)])
        out, err = capsys.readouterr()
        assert (status, out) == (2, "")
        assert err.count("\n") == 1
        assert len(err) < 600
        return err.removeprefix("tangram: ").rstrip()

    return run


@pytest.fixture
def trace(tmp_path):
    def write(content, name="t.csv"):
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    return write


def bomb(piece, times):
    packer = zlib.compressobj(9, wbits=31)
    return b"".join(packer.compress(piece) for _ in range(times)) + packer.flush()


# -- lines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("nan,1,1", "arrival_s is 'nan', not a number"),
        ("inf,1,1", "arrival_s is 'inf', not a number"),
        ("1e999,1,1", "arrival_s is '1e999', not a number"),
        ("-1,1,1", "arrival_s is -1.0, not from 0 to"),
        ("1e9,1,1", "arrival_s is 1000000000.0, not from 0 to"),
        ("1,nan,1", "input_tokens is 'nan', not a whole number"),
        ("1,1.5,1", "input_tokens is '1.5', not a whole number"),
        ("1,0,1", "input_tokens is 0, not from 1"),
        ("1,1,-5", "output_tokens is -5, not from 1"),
        ("1,99999999999,1", "input_tokens is 99999999999, not from 1"),
        ("1,1," + "9" * 100_000, "output_tokens is"),
        ("1,1", "has 2 cells under 3 columns"),
        ("1,1,1,1", "has 4 cells under 3 columns"),
        ("0.5,1,1", "arrives at 0.5, before the request of an earlier line"),
        ("=cmd(),1,1", "arrival_s is '=cmd()', not a number"),
        ("1,1,1\0", "is binary, not text"),
    ],
)
def test_a_line_that_is_no_request_is_named_by_its_number(refused, trace, line, problem):
    file = trace(f"{CSV}0.9,10,10\n{line}\n5,1,1\n")

    err = refused(trace=file)

    assert err.startswith(f"{file}: line 3: ")
    assert problem in err


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("[1, 2, 3]", "is [1, 2, 3], not an object"),
        ("{", "is not JSON"),
        ('{"arrival_s": NaN, "input_tokens": 1, "output_tokens": 1}', "arrival_s is nan, not a number"),
        ('{"arrival_s": true, "input_tokens": 1, "output_tokens": 1}', "arrival_s is True, not a number"),
        ('{"arrival_s": 1, "input_tokens": ' + "9" * 5000 + ', "output_tokens": 1}', "is not JSON"),
        ('{"a":' + "[" * 100_000 + "]" * 100_000 + "}", "is not JSON"),
        (
            '{"arrival_s": 1, "input_tokens": 1, "output_tokens": 1, "prefix_block_ids_512": [-1]}',
            "prefix_block_ids_512 is [-1]",
        ),
    ],
)
def test_a_json_line_that_is_no_request_is_named_by_its_number(refused, trace, line, problem):
    first = json.dumps({"arrival_s": 0, "input_tokens": 1, "output_tokens": 1})

    assert problem in refused(trace=trace(f"{first}\n{line}\n", "t.jsonl"))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "has no requests"),
        ("\n\n\n", "has no requests"),
        (CSV, "has no requests"),
        ("a,b,c\n1,2,3\n", "it lacks arrival_s, input_tokens, output_tokens"),
        (CSV.replace("output", "input"), "it lacks output_tokens"),
        (CSV.strip() + ",arrival_s\n0,1,1,0\n", "names a column twice"),
        (b"\xff\xfe\x00a", "line 1: is neither gzip nor UTF-8 text"),
        (b"PK\x03\x04\x00\x00", "line 1: is binary, not text"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(refused, trace, content, problem):
    assert problem in refused(trace=trace(content))


def test_a_thousand_columns_are_read_and_their_lack_is_one_short_line(refused, trace):
    names = [f"c{n}" for n in range(1000)]
    wide = ",".join([*names, CSV.strip()]) + "\n" + ",".join(["x"] * 1000 + ["0,10,10"]) + "\n"

    assert len(read_trace(str(trace(wide))).requests) == 1
    assert "it lacks arrival_s" in refused(trace=trace(",".join(names) + "\n"))


# -- files ---------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_there_names_the_packaged_traces(refused, tmp_path):
    err = refused(trace=tmp_path / "nowhere.csv")

    assert err.startswith("--trace: there is no file")
    assert "azure2023_code, azure2023_conv" in err


def test_a_directory_and_a_name_with_a_nul_are_no_files(refused, tmp_path):
    assert "is a directory" in refused(trace=tmp_path)
    assert "cannot read" in refused(trace="a\0b")


def test_a_file_that_may_not_be_read_is_said_to_be_so(refused, trace, monkeypatch):
    file, real_open = trace(CSV), Path.open

    def denied(path, *arguments, **options):
        if path == file:
            raise PermissionError(13, "Permission denied")
        return real_open(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(InputError, match=r"cannot read .*Permission denied"):
        read_trace(str(file))


def test_a_packaged_name_is_a_name_and_not_a_path(refused):
    assert "there is no file" in refused(trace="../traces/azure2023_conv")


def test_gzip_of_several_members_with_padding_is_one_trace(trace):
    packed = gzip.compress(f"{CSV}0,1,1\n1,1".encode()) + gzip.compress(b",1\n2,1,1\n") + bytes(100)

    assert [r.arrival_s for r in read_trace(str(trace(packed))).requests] == [0.0, 1.0, 2.0]


def test_a_byte_order_mark_is_no_part_of_the_header(trace):
    assert len(read_trace(str(trace("\ufeff" + CSV + "0,1,1\n"))).requests) == 1


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda packed: packed[:-9], "is cut off: the gzip data has no end"),
        (lambda packed: packed + b"tail", "has other data after its gzip data"),
        (lambda packed: packed[:10] + b"\xff" * 20, "begins like gzip, but cannot be unpacked"),
        (lambda packed: packed[:-4] + b"\0\0\0\0", "begins like gzip, but cannot be unpacked"),
    ],
)
def test_damaged_gzip_is_refused(refused, trace, damage, problem):
    assert problem in refused(trace=trace(damage(gzip.compress(f"{CSV}0,1,1\n".encode())), "t.csv.gz"))


# -- bounds --------------------------------------------------------------------------------------------------


def bounded(read):
    """The error of a read that takes little memory and time."""
    tracemalloc.start()
    begin = time.process_time()
    try:
        with pytest.raises(InputError) as caught:
            read()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20
    assert time.process_time() - begin < 10
    return str(caught.value)


def test_a_bomb_of_one_line_is_refused_before_it_is_unpacked(trace):
    file = trace(bomb(bytes(1 << 20), 200), "zeros.csv.gz")  # three times the memory that it may take
    assert file.stat().st_size < 1 << 19

    assert "line 1: has more than 1,000,000 characters" in bounded(lambda: read_trace(str(file)))


def test_an_endless_device_is_refused():
    assert "line 1: has more than 1,000,000 characters" in bounded(lambda: read_trace("/dev/zero"))


def test_a_bomb_of_empty_lines_is_refused_by_their_number(trace, monkeypatch):
    monkeypatch.setattr(trace_lines, "MAX_ROWS", 200_000)
    file = trace(bomb(b"\n" * (1 << 20), 100), "lines.csv.gz")

    assert "has more than 200,000 lines" in bounded(lambda: read_trace(str(file)))


def test_a_bomb_of_wide_lines_is_refused_by_its_size(trace, monkeypatch):
    monkeypatch.setattr(trace_files, "MAX_UNPACKED", 8 << 20)
    header = CSV.strip() + "," + ",".join(f"c{n}" for n in range(10_000)) + "\n"
    row = "0,1,1," + ",".join("1" * 10_000) + "\n"
    file = trace(gzip.compress(header.encode()) + bomb(row.encode(), 1000), "wide.csv.gz")

    assert "is larger than 8 MiB when unpacked" in bounded(lambda: read_trace(str(file)))


def test_a_bomb_of_requests_is_refused_by_their_number(trace, monkeypatch):
    monkeypatch.setattr(trace_lines, "MAX_ROWS", 10_000)
    file = trace(gzip.compress(CSV.encode()) + bomb(b"0,1,1\n" * 1000, 1000), "requests.csv.gz")

    assert "has more than 10,000 lines" in bounded(lambda: read_trace(str(file)))


def test_more_requests_than_one_run_holds_are_refused(refused, monkeypatch):
    monkeypatch.setattr(simulation, "MAX_REQUESTS", 38_000)

    err = refused("--rate-factor", 2)

    assert err == "--trace: has 38,732 requests, more than 38,000: cut it by --to"


@pytest.mark.parametrize(
    ("options", "field"),
    [((), "--trace"), (("--to", "30d"), "--trace"), (("--duration", "15d"), "--duration")],
)
def test_more_than_two_weeks_are_refused(refused, trace, options, field):
    file = trace(f"{CSV}0,1,1\n{20 * 86_400},1,1\n")

    assert refused(*options, trace=file).startswith(f"{field}: lasts ")


# -- options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--law", "magic"), "--law: 'magic' is none of tangram, static=N, hpa"),
        (("--law", "static"), "--law: static needs a number of replicas: static=4"),
        (("--law", "static=1e9"), "static: needs a number of replicas up to 16"),
        (("--law", "static=2.5"), "static: needs a number of replicas up to 16"),
        (("--law", "static=nan"), "--law: 'nan' is no value of the knob of static"),
        (("--law", "tangram=0"), "--law: '0' is no value of the knob of tangram"),
        (("--rate-factor", "nan"), "--rate-factor: must be from 0.001 to 1,000, not nan"),
        (("--rate-factor", "1e9"), "--rate-factor: must be from 0.001 to 1,000"),
        (("--rate-factor", "-1"), "--rate-factor: must be from"),
        (("--seeds", "0"), "--seeds: must be from 1 to 100"),
        (("--seeds", "101"), "--seeds: must be from 1 to 100"),
        (("--seed", "-1"), "--seed: must be from 0"),
        (("--start-seconds", "inf"), "--start-seconds: must be from 0 to 86,400"),
        (("--from", "soon"), "--from: 'soon' is no time: 90, 90s, 15m, 2h or 1d"),
        (("--from", "-5"), "--from: '-5' is no time"),
        (("--from", "m"), "--from: 'm' is no time"),
        (("--from", "2h"), "--from: the trace of chat has no requests in the window"),
        (("--from", "10m", "--to", "5m"), "--to: is 300 s, not after --from, 600 s"),
        (("--duration", "0"), "--duration: must be above 0"),
        (("--duration", "1e400"), "--duration: '1e400' is no time"),
        (("--trace", "chat=azure2023_code"), "--trace: chat has two traces"),
        (("--node-failure", "node-c=5m"), "--node-failure: 'node-c' is none of the nodes node-a, node-b"),
        (("--node-failure", "node-a"), "--node-failure: '' is no time"),
        (("--node-failure", "node-a=-5"), "--node-failure: '' is no time"),
        (("--node-failure", "node-a=5m-"), "--node-failure: '' is no time"),
        (("--node-failure", "node-a=5m-5m"), "--node-failure: 'node-a=5m-5m' must end after it begins"),
        (("--plot", "run.pdf"), "--plot: 'run.pdf' must end in .png or .html"),
        (("--plot", "/nowhere/run.png"), "--plot: cannot write '/nowhere/run.png'"),
    ],
)
def test_options_out_of_bounds_are_refused_before_anything_is_simulated(
    refused, monkeypatch, options, problem
):
    monkeypatch.setattr(simulation, "run", lambda *_: pytest.fail("it simulated first"))

    assert refused(*options).startswith(problem)


def test_without_matplotlib_only_the_plot_is_refused(refused, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(simulation, "run", lambda *_: pytest.fail("it simulated first"))

    err = refused("--plot", tmp_path / "run.png")

    assert err == "--plot: needs matplotlib: in the folder of Tangram's source, pip install '.[cli]'"


# -- fleets --------------------------------------------------------------------------------------------------


def changed(tmp_path, change):
    documents = list(yaml.safe_load_all(FLEET.read_text()))
    change(documents)
    file = tmp_path / "fleet.yaml"
    file.write_text("---\n".join(yaml.safe_dump(document) for document in documents))
    return file


def test_a_fleet_without_gpus_is_refused(refused, tmp_path):
    file = changed(tmp_path, lambda documents: documents.pop())

    assert refused(file=file).startswith("--file: has no node with GPUs")


def test_a_fleet_without_the_llmdeployment_is_refused(refused, tmp_path):
    file = changed(tmp_path, lambda documents: documents.pop(0))

    assert refused(file=file) == (
        "--trace: 'azure2023_conv' names none of the LLMDeployments (none): NAME=TRACE"
    )


def test_of_two_llmdeployments_a_trace_names_one(refused, tmp_path):
    second = {"metadata": {"name": "code"}}
    file = changed(tmp_path, lambda documents: documents.insert(0, documents[0] | second))

    assert "names none of the LLMDeployments (chat, code)" in refused(file=file)
    assert "names none of the LLMDeployments" in refused(file=file, trace="other=azure2023_conv")


def test_a_model_that_no_device_of_the_fleet_can_serve_is_refused(refused, tmp_path):
    def larger(documents):
        documents[0]["spec"]["model"]["uri"] = "pvc://models/Llama-3.1-70B"

    err = refused(file=changed(tmp_path, larger))

    assert err.startswith("LLMDeployment chat: no replica finds a device in this fleet")


def test_a_model_that_the_simulator_cannot_describe_is_refused_by_its_name(refused, tmp_path):
    def experts(documents):
        documents[0]["spec"]["model"]["uri"] = "pvc://models/Mixtral-8x7B-v0.1"

    err = refused(file=changed(tmp_path, experts))

    assert err.startswith("LLMDeployment chat: Mixtral-8x7B: is no dense decoder")


def test_a_law_that_needs_a_profile_says_where_no_rate_meets_the_objectives(refused, tmp_path):
    def hopeless(documents):
        documents[0]["spec"]["objectives"] = {"tpot": {"percentile": 99, "milliseconds": 14}}

    err = refused("--law", "benchmarks.autoscaling.laws:knative", file=changed(tmp_path, hopeless))

    assert err.startswith("LLMDeployment chat: ")

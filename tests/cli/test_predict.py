"""`tangram predict`: scores of a file of measurements, and one line for whatever is wrong with it."""

import gzip
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tangram.catalog import InputError
from tangram.cli.main import main
from tangram.cli.options import csv_file

HEADER = "id,model,gpu,tp,backend,backend_version,weights_precision,isl,osl,concurrency,ttft_ms,tpot_ms"
ROWS = [
    f"{model}-{number},{model},{gpu},{tp},vllm,0.18.0,{precision},1000,200,{4 << number},99,{9 + number}"
    for model, gpu, tp, precision in (
        ("Llama-3.1-8B", "h100_sxm", 1, "bf16"),
        ("Llama-3.1-70B", "h200_sxm", 4, "fp8"),
        ("Llama-3.1-70B", "h200_sxm", 8, "fp8"),
    )
    for number in range(5)
]
TINY = Path(__file__).parents[2] / "models" / "tangram-tiny" / "config.json"


def lines(*rows: str, header: str = HEADER) -> str:
    return "\n".join((header, *(rows or ROWS))) + "\n"


@pytest.fixture
def points(tmp_path: Path) -> Path:
    path = tmp_path / "points.csv"
    path.write_text(lines())
    return path


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert main(["predict", *argv, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that a wrong call ends in."""
    assert main(["predict", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tangram: ")
    assert err.count("\n") == 1
    return err


def test_scores_are_the_percentiles_of_the_rows_by_model_gpu_engine_and_precision(
    points: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = document(capsys, str(points))
    rows = document(capsys, str(points), "--rows")
    assert [(each["key"], each["n"]) for each in scores] == [
        ("Llama-3.1-8B, h100_sxm, vllm, bf16", 5), ("Llama-3.1-70B, h200_sxm, vllm, fp8", 10), ("overall", 15)
    ]  # fmt: skip
    for each in scores:
        mine = [row for row in rows if each["key"] in (row["key"], "overall")]
        for quantity in ("ttft", "tpot"):
            pairs = [row[f"{quantity}_ms"] for row in mine]
            errors = [abs(pair["predicted"] / pair["measured"] - 1) * 100 for pair in pairs]
            expected = np.percentile(errors, [50, 90])
            assert [each[quantity]["median"], each[quantity]["p90"]] == pytest.approx(list(expected))
    assert set(scores[0]) == {"key", "n", "ttft", "tpot"}


def test_predictions_are_of_the_right_size(points: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reading 15 GB of weights takes an H100 at least 4.5 ms; 16 TFLOP for a prompt at least 16 ms."""
    row = document(capsys, str(points), "--rows")[0]
    assert 4.5 < row["tpot_ms"]["predicted"] < 15
    assert 16 < row["ttft_ms"]["predicted"] < 500


def test_the_first_rows_of_each_combination_correct_its_others(
    points: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measurements that are all half as long again: three of them tell most about the others."""
    slow = [
        ",".join(
            (*row.split(",")[:-2], *(str(1.5 * each[name]["predicted"]) for name in ("ttft_ms", "tpot_ms")))
        )
        for row, each in zip(ROWS, document(capsys, str(points), "--rows"), strict=True)
    ]
    points.write_text(lines(*slow))
    plain, corrected = (document(capsys, str(points), "--correct", n) for n in ("0", "3"))
    assert [each["n"] for each in corrected] == [2, 7, 9]
    # How much of it is for the correction to say; less of first tokens, of which few requests tell little.
    for quantity, left in (("ttft", 1.0), ("tpot", 0.75)):
        assert plain[-1][quantity]["median"] == pytest.approx(100 / 3)
        assert corrected[-1][quantity]["p90"] < left * 100 / 3


def test_gzip_and_plain_yaml_and_json_say_the_same(
    points: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed, parts = tmp_path / "packed", tmp_path / "parts.gz"
    packed.write_bytes(gzip.compress(points.read_bytes()))
    half = len(points.read_bytes()) // 2
    parts.write_bytes(gzip.compress(points.read_bytes()[:half]) + gzip.compress(points.read_bytes()[half:]))
    crlf = tmp_path / "excel.csv"
    crlf.write_bytes(b"\xef\xbb\xbf" + points.read_bytes().replace(b"\n", b"\r\n") + b"\r\n\r\n")
    expected = document(capsys, str(points))
    for other in (packed, parts, crlf):
        assert document(capsys, str(other)) == expected
    assert main(["predict", str(points), "-o", "yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == expected


def test_a_person_reads_a_table_whose_doubts_are_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "points.csv"
    path.write_text(lines(ROWS[0].replace("h100_sxm", "T4").replace("bf16", "fp16"), *ROWS[1:5]))
    assert main(["predict", str(path)]) == 0
    header, marked, plain, overall, _, *below = capsys.readouterr().out.splitlines()
    assert header.startswith("MODEL, GPU, ENGINE, PRECISION")
    assert marked.startswith("Llama-3.1-8B, T4, vllm, fp16*")
    assert plain.startswith("Llama-3.1-8B, h100_sxm, vllm, bf16 ")
    assert overall.startswith("overall*")
    assert any(line.startswith("* ") for line in below)
    assert main(["predict", str(path), "--rows"]) == 0
    out = capsys.readouterr().out
    assert len([line for line in out.splitlines() if "Llama-3.1-8B" in line]) == 5


def test_a_model_is_found_beside_the_points_or_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        (folder / "tiny").mkdir(parents=True)
    (there / "tiny" / "config.json").write_text(TINY.read_text())
    (here / "tiny" / "mine.json").write_text(TINY.read_text())
    monkeypatch.chdir(here)
    names = ("tiny", "tiny/config.json", "tiny/mine.json", str(TINY))
    (there / "points.csv").write_text(
        lines(*(ROWS[0].replace(",Llama-3.1-8B,", f",{name},") for name in names))
    )
    rows = document(capsys, str(there / "points.csv"), "--rows")
    assert len({row["tpot_ms"]["predicted"] for row in rows}) == 1


def test_a_missing_measurement_leaves_its_score_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "points.csv"
    without = [",".join((*row.split(",")[:-2], "", row.split(",")[-1])) for row in ROWS[:3]]
    path.write_text(lines(*without))
    overall = document(capsys, str(path))[-1]
    assert overall["ttft"] is None
    assert overall["tpot"]["median"] >= 0
    assert main(["predict", str(path), "--plot", str(tmp_path / "x.png")]) == 0


def changed(column: str, value: str) -> str:
    cells = dict(zip(HEADER.split(","), ROWS[1].split(","), strict=True))
    return lines(ROWS[0], ",".join({**cells, column: value}.values()))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is empty"), ("\n\n", "has no header"), (HEADER, "has a header but no rows"),
        (f"{HEADER}\n\n\n", "has a header but no rows"),
        (lines(header=HEADER.replace("isl", "input")), "lacks a column: isl"),
        (lines(header=HEADER.replace("isl", "i").replace("osl", "o")), "lacks columns: isl, osl"),
        (lines(header=HEADER.replace("id,", "tp,", 1)), "two columns named tp"),
        (lines(ROWS[0], ROWS[1] + ",7"), "line 3: has 13 cells under 12 columns"),
        (lines(ROWS[0], "", ROWS[1]), "line 3: has 0 cells under 12 columns"),
        (lines(ROWS[0], f'"a\nb{ROWS[1]}'), "is not CSV"),
        (lines(f'"a\nb",{ROWS[1].split(",", 1)[1]}'), "line 2: has a cell of several lines"),
        ("PK\x03\x04\0\0\0", "is binary"), ("\udcff\udcfe", "is neither gzip nor UTF-8"),
        ("hello world", "lacks columns: model"),
        (changed("model", "Llama-3.1-8"), "line 3: model: 'Llama-3.1-8' is neither a path that exists nor"),
        (changed("model", ""), "line 3: model: is empty"),
        (changed("model", "x" * 5000), "line 3: model: "),
        (changed("gpu", "h1000"), "line 3: gpu: no GPU is called 'h1000', nearest is H100"),
        (changed("gpu", ""), "line 3: gpu: is empty"),
        (changed("weights_precision", "fp3"), "line 3: "),
        (changed("tp", "3"), "line 3: tensor parallel: 3 does not"),
        (changed("tp", "1.5"), "line 3: tp: '1.5' is not a whole number"),
        (changed("tp", "0"), "line 3: tp: "),
        (changed("isl", "-1000"), "line 3: isl: '-1000' is not a positive number"),
        (changed("osl", "nan"), "line 3: osl: 'nan' is not a positive number"),
        (changed("concurrency", "inf"), "line 3: concurrency: "),
        (changed("concurrency", "many"), "is not a number"),
        (changed("ttft_ms", "NaN"), "line 3: ttft_ms: "), (changed("tpot_ms", "-3"), "line 3: tpot_ms: "),
        (changed("tpot_ms", "0"), "line 3: tpot_ms: "),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_line_with_its_place(
    content: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "points.csv"
    path.write_bytes(content.encode("utf-8", errors="surrogateescape"))
    line = refusal(capsys, str(path))
    assert f"tangram: {path}: " in line
    assert problem in line
    assert len(line) < 1500, "a cell of any length is cut"


def test_broken_gzip_is_told_from_text(
    points: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gzip.compress(points.read_bytes())
    for content, problem in (
        (whole[:-9], "is cut off"),
        (b"\x1f\x8bnonsense", "begins like gzip"),
        (whole + b"trailer", "has other data after its gzip data"),
        (gzip.compress(b""), "has no header"),
        (zlib.compress(points.read_bytes()), "neither gzip nor UTF-8"),
    ):
        path = tmp_path / "broken.gz"
        path.write_bytes(content)
        assert problem in refusal(capsys, str(path))
    monkeypatch.setattr(csv_file, "MAX_BYTES", 2**20)
    (tmp_path / "bomb").write_bytes(gzip.compress(bytes(5 * 2**20)))
    assert "larger than 1 MiB when unpacked" in refusal(capsys, str(tmp_path / "bomb"))
    (tmp_path / "huge").write_bytes(b"a" * (2**20 + 1))
    assert "larger than 1 MiB" in refusal(capsys, str(tmp_path / "huge"))


def test_a_file_that_is_not_there_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such file" in refusal(capsys, str(tmp_path / "none.csv"))
    assert "directory" in refusal(capsys, str(tmp_path))


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--correct", "-1"), "--correct"), (("--correct", "99"), "--correct"),
        (("--correct", "1.5"), "--correct"),
        (("--plot", "scatter.doc"), "--plot"), (("--plot", "none/scatter.png"), "--plot"),
        (("--plot", "."), "--plot"), (("-o", "xml"), "xml"),
    ],
)  # fmt: skip
def test_flags_that_cannot_be_are_one_line(
    flags: tuple[str, ...], problem: str, points: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(points.parent)
    assert problem in refusal(capsys, str(points), *flags)


def test_the_picture_is_drawn_beside_the_scores(points: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = points.with_name("scatter.png")
    assert len(document(capsys, str(points), "--plot", str(picture))) == 3
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = (int.from_bytes(content[at : at + 4]) for at in (16, 20))
    assert width > height > 500
    assert len(content) > 20_000, "an empty picture packs to less"


def test_without_matplotlib_only_the_picture_is_refused(
    points: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert document(capsys, str(points))
    assert "pip install '.[cli]'" in refusal(capsys, str(points), "--plot", "scatter.png")


@pytest.mark.parametrize("argv", [[], ["--rows"], ["-o", "json"]])
def test_a_reader_that_leaves_early_is_no_error(points: Path, argv: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "operator")}
    command = [sys.executable, "-m", "tangram.cli.main", "predict", str(points), *argv]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        command, env=environment, stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False
    )
    os.close(writing)
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr


CSV_LIKE = st.text(alphabet='a,"\n\r\0 é').map(lambda text: f"{HEADER}\n{text}".encode())


@given(st.one_of(st.binary(), st.text().map(str.encode), st.binary().map(gzip.compress), CSV_LIKE))
def test_any_bytes_are_rows_or_one_clear_line(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("any", numbered=True) / "points"
    path.write_bytes(content)
    try:
        rows = csv_file.read_csv(path, ("model", "gpu"))
    except InputError:
        return
    assert rows
    assert all({"model", "gpu"} <= row.keys() for row in rows)

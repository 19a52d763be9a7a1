"""The text process: whatever template and tokenizer do, a request ends, and the next one works."""

import asyncio
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import reduce
from pathlib import Path
from typing import Any

import markupsafe
import pytest

from tangram_engine.checkpoint import CheckpointError
from tangram_engine.serve import api
from tangram_engine.serve.http.errors import APIError
from tangram_engine.serve.text.client import TextClient, TextUnavailable
from tangram_engine.serve.text.process import FRAME_LIMIT, pack, receive, send
from tangram_engine.serve.text.template import TemplateError
from tangram_engine.serve.text.tokenizer import PromptTooLong, TokenizerError, load_tokenizer
from tests.support.bad_templates import BOMBS, COMPILER_BOMBS, all_in_one
from tests.support.engine_process import EngineProcess, eventually
from tests.support.served_model import write_model

HELLO = [{"role": "user", "content": "the quick"}]
RENDER_CPU_S = 0.3
MEMORY = 256 << 20
VOCAB = 320
BYTE_LEVEL = {"add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def write_template(model: Path, source: str) -> Path:
    (model / "chat_template.jinja").write_text(source)
    return model


def change_tokenizer(model: Path, **parts: Any) -> Path:
    path = model / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))
    return model


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextClient]:
    model = write_template(write_model(tmp_path_factory.mktemp("bombs") / "model"), all_in_one())
    text = TextClient(model, VOCAB, memory=MEMORY, workers=1, render_cpu_s=RENDER_CPU_S)
    text.start()
    yield text
    text.close()


def chat(client: TextClient, **options: Any) -> tuple[int, ...]:
    return client.chat(HELLO, options, 512)


def status_of(process: int, name: str) -> int:
    """A number of /proc/PID/status."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def children_of(process: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_an_error_within_the_limits_and_the_next_render_works(
    bomb: str, client: TextClient
) -> None:
    assert client.pid is not None
    process = client.pid
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TemplateError):
        chat(client, bomb=bomb, n=10**9)
    assert chat(client, bomb="")
    assert client.pid == process  # nothing was loaded again
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


@pytest.mark.parametrize("source", COMPILER_BOMBS.values(), ids=COMPILER_BOMBS)
def test_a_template_that_attacks_the_compiler_is_refused_at_start_up(source: str, tmp_path: Path) -> None:
    with (
        closing(
            TextClient(write_template(write_model(tmp_path), source), VOCAB, workers=1, load_cpu_s=1.5)
        ) as client,
        pytest.raises(CheckpointError, match="chat template"),
    ):
        client.start()


def test_a_template_that_is_always_over_a_limit_is_refused_at_start_up(tmp_path: Path) -> None:
    model = write_template(write_model(tmp_path), BOMBS["endless loop"])
    with (
        closing(TextClient(model, VOCAB, workers=1, render_cpu_s=RENDER_CPU_S)) as client,
        pytest.raises(CheckpointError, match=r"longer than 0\.3 s of CPU time"),
    ):
        client.start()


def test_a_template_that_refuses_the_first_message_may_accept_others(tmp_path: Path) -> None:
    source = "{% if messages | length < 2 %}{{ raise_exception('two messages') }}{% endif %}the"
    with closing(TextClient(write_template(write_model(tmp_path), source), VOCAB, workers=1)) as client:
        client.start()
        with pytest.raises(TemplateError, match="two messages"):
            client.chat(HELLO, {}, 512)
        assert client.chat(HELLO * 2, {}, 512)


def test_a_worker_has_no_environment_no_files_and_no_way_to_open_any(
    client: TextClient,
) -> None:
    assert client.pid is not None
    (worker,) = children_of(client.pid)
    environment = (Path(f"/proc/{worker}/environ")).read_bytes().split(b"\0")
    names = {entry.split(b"=")[0].decode() for entry in environment if entry}
    assert names <= {
        "PYTHONPATH",
        "TOKENIZERS_PARALLELISM",
        "TZ",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "LD_LIBRARY_PATH",
    }
    targets = sorted(str(entry.readlink()) for entry in Path(f"/proc/{worker}/fd").iterdir())
    assert targets[:3] == ["/dev/null"] * 3
    assert len(targets) == 4
    assert targets[3].startswith("socket:")
    limits = Path(f"/proc/{worker}/limits").read_text().splitlines()
    for name in ("Max open files", "Max processes", "Max file size"):
        line = next(line for line in limits if line.startswith(name))
        assert line.removeprefix(name).split()[:2] == ["0", "0"]


def test_dependencies_are_found_on_the_pythonpath_and_nothing_else_of_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dependencies, instrumentation = tmp_path / "dependencies", tmp_path / "instrumentation"
    shutil.copytree(Path(markupsafe.__file__).parent, dependencies / "markupsafe")
    instrumentation.mkdir()
    (instrumentation / "sitecustomize.py").write_text("import os\nos._exit(9)\n")
    monkeypatch.setenv("PYTHONPATH", f"{instrumentation}:{dependencies}:")
    with closing(TextClient(write_template(write_model(tmp_path), "the"), VOCAB, workers=1)) as client:
        client.start()

        assert f"{dependencies}/markupsafe/_speedups" in Path(f"/proc/{client.pid}/maps").read_text()
        assert chat(client)


def test_a_worker_that_is_killed_is_replaced_and_its_request_is_answered(client: TextClient) -> None:
    assert client.pid is not None
    for _ in range(3):
        (worker,) = children_of(client.pid)
        eventually(lambda pid=worker: "S (sleeping)" in Path(f"/proc/{pid}/status").read_text(), "idle")
        os.kill(worker, 9)
        assert chat(client, bomb="")


def test_a_text_process_that_is_killed_is_started_again(tmp_path: Path) -> None:
    with closing(TextClient(write_model(tmp_path), VOCAB)) as client:
        client.start()
        first = client.pid
        assert first is not None
        workers = children_of(first)
        for process in (first, *workers):
            os.kill(process, 9)
        with pytest.raises(TextUnavailable):
            chat(client)
        assert chat(client)
        assert client.pid != first


def test_no_process_outlives_the_client(tmp_path: Path) -> None:
    client = TextClient(write_model(tmp_path), VOCAB)
    client.start()
    assert client.pid is not None
    processes = [client.pid, *children_of(client.pid)]
    assert len(processes) == 3
    client.close()
    eventually(lambda: not any(Path(f"/proc/{process}").exists() for process in processes), "all gone")
    with pytest.raises(TextUnavailable):
        chat(client)


def test_calls_of_several_threads_do_not_mix(client: TextClient) -> None:
    texts = [f"text {i} " * (i + 1) for i in range(20)]
    expected = [client.encode(text, 512, add_special_tokens=False) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: client.encode(text, 512, add_special_tokens=False), texts * 5))
    assert found == expected * 5


def test_a_long_text_is_refused_without_its_tokens(client: TextClient) -> None:
    with pytest.raises(PromptTooLong):
        client.encode("z" * 1_000_000, 512, add_special_tokens=False)


def test_half_a_surrogate_pair_from_a_template_is_an_error(tmp_path: Path) -> None:
    model = write_template(write_model(tmp_path), "{{ '\\ud800' if messages | length > 1 else 'a' }}")
    with closing(TextClient(model, VOCAB, workers=1)) as client:
        client.start()
        with pytest.raises((TemplateError, TokenizerError)):
            client.chat(HELLO * 2, {}, 512)


def test_half_a_surrogate_pair_in_a_templates_refusal_keeps_the_process(tmp_path: Path) -> None:
    source = "{{ raise_exception('no \\ud800 here') if messages | length > 1 else 'a' }}"
    with closing(TextClient(write_template(write_model(tmp_path), source), VOCAB, workers=1)) as client:
        client.start()
        process = client.pid
        with pytest.raises(TemplateError, match=r"no . here"):
            client.chat(HELLO * 2, {}, 512)
        assert client.chat(HELLO, {}, 512)
        assert client.pid == process


@pytest.mark.parametrize("option", [1 << 64, -(1 << 63) - 1, "\ud800"])
def test_what_cannot_be_sent_takes_no_worker(option: object, client: TextClient) -> None:
    process = client.pid
    with pytest.raises(TokenizerError, match="cannot be sent"):
        chat(client, bomb="", option=option)
    assert chat(client, bomb="")  # the only worker is free
    assert client.pid == process


def test_a_pre_tokenizer_that_takes_exponential_time_ends_at_its_limit(tmp_path: Path) -> None:
    pattern = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    with closing(
        TextClient(change_tokenizer(write_model(tmp_path), pre_tokenizer=pattern), VOCAB, workers=1)
    ) as client:
        client.start()
        before = resource.getrusage(resource.RUSAGE_SELF)
        with pytest.raises(TokenizerError):
            client.encode("x" * 5000, 8192, add_special_tokens=False)
        after = resource.getrusage(resource.RUSAGE_SELF)
        assert after.ru_utime - before.ru_utime < 1
        assert client.encode("the quick", 512, add_special_tokens=False)


def test_a_normalizer_that_makes_texts_huge_ends_at_the_limit_of_memory(tmp_path: Path) -> None:
    grow = {"type": "Replace", "pattern": {"String": "q"}, "content": "q" * 4000}
    normalizer = {"type": "Sequence", "normalizers": [grow] * 3}
    with closing(
        TextClient(
            change_tokenizer(write_model(tmp_path), normalizer=normalizer), VOCAB, memory=MEMORY, workers=1
        )
    ) as client:
        client.start()
        with pytest.raises(TokenizerError):
            client.encode("q", 512, add_special_tokens=False)
        assert client.encode("the", 512, add_special_tokens=False)


def test_a_slow_template_leaves_other_requests_and_probes_alone(tmp_path: Path, start: Any) -> None:
    source = "{% if messages | length > 1 %}" + BOMBS["endless loop"] + "{% endif %}{{ messages[0].content }}"
    server: EngineProcess = start(
        "--drain-seconds", "0", model=write_template(write_model(tmp_path / "slow"), source)
    )
    with ThreadPoolExecutor(4) as pool:
        slow = [pool.submit(server.chat, "a", "b", max_tokens=1) for _ in range(2)]
        probes = 0
        while not all(future.done() for future in slow):
            assert server.get("/health").status_code == 200
            probes += 1
            time.sleep(0.05)
        answers = [future.result() for future in slow]
    assert probes > 5  # one for each template, if probes waited for them
    assert {answer.status_code for answer in answers} == {400}
    assert {answer.json()["error"]["code"] for answer in answers} == {"chat_template_error"}
    assert "takes longer than" in answers[0].json()["error"]["message"]
    assert server.chat("a", max_tokens=1).status_code == 200
    server.terminate()
    assert server.wait() == 0


def test_tokens_that_the_library_cannot_decode_are_an_error(served_model: Path) -> None:
    tools = load_tokenizer(served_model)
    with pytest.raises(TokenizerError):
        tools.decode([1 << 40])


def test_a_panic_while_an_answer_is_decoded_is_the_error_of_its_request(tmp_path: Path, start: Any) -> None:
    """The decoder strips up to five letters "e"; the library panics on a text of fewer and nothing else."""
    strip = {"type": "Strip", "content": "e", "start": 0, "stop": 5}
    steps = [{"type": "ByteLevel"} | BYTE_LEVEL, {"type": "Fuse"}, strip]
    decoder = {"type": "Sequence", "decoders": steps}
    server: EngineProcess = start(model=change_tokenizer(write_model(tmp_path / "panics"), decoder=decoder))
    for stream in (False, True):
        answer = server.complete("e", max_tokens=4, stream=stream)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "tokenizer_error")
    tokens = server.post("/tokenize", {"prompt": "e"}).json()["tokens"]
    answer = server.post("/detokenize", {"tokens": tokens})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "tokenizer_error")
    eventually(server.quiet, "nothing left")


def test_a_text_process_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from tangram_engine.serve.text.client import TextClient\n"
        "client = TextClient(Path(sys.argv[1]), 320); client.start()\n"
        "print(client.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", code, str(write_model(tmp_path))]
    found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert found.returncode == -9
    eventually(lambda: not Path(f"/proc/{found.stdout.strip()}").exists(), "text process gone")


async def test_a_request_that_finds_no_free_worker_is_refused_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api, "_TEXT_WAIT_S", 0.01)
    backend = api.Backend.__new__(api.Backend)
    backend.text_slots = asyncio.Semaphore(0)
    with pytest.raises(APIError) as caught:
        await backend.in_text_thread(list)
    assert (caught.value.status, caught.value.code) == (503, "text_workers_busy")


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (reduce(lambda inner, _: [inner], range(100_000), []), "nested too deeply"),
        (1 << 64, "more than 64 bits"),
        ("\ud800", "surrogates not allowed"),
        ("x" * (FRAME_LIMIT + 1), "over the limit"),
    ],
    ids=["deep", "wide", "surrogate", "long"],
)
def test_what_no_frame_can_hold_is_refused_before_it_is_sent(value: Any, cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        pack(("encode", 1, value, False))


@pytest.mark.parametrize(
    "body",
    [b"\x91" * 1_000_000, b"\xdd\x07\xff\xff\xff", b"\xc1", b"\xa2\xff\xfe", b""],
    ids=["deep", "a length that does not follow", "no type", "no UTF-8", "empty"],
)
def test_a_frame_that_is_no_message_is_an_error_of_the_frame(body: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=send, args=(theirs, body))
        sender.start()
        with pytest.raises(ValueError, match=r"no msgpack|utf-8"):
            receive(ours)
        sender.join()

"""Only our own processes are ended: by pid and start time, never by name."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.cluster import processes
from e2e.cluster.base import ClusterError, write_atomically

SLEEPER = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]
STUBBORN = [
    *(sys.executable, "-I", "-S", "-c"),
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)",
]


def started(
    tmp_path: Path, command: list[str] = SLEEPER
) -> tuple[subprocess.Popen[bytes], processes.Identity]:
    child = processes.spawn(command, log=tmp_path / "log", pid_file=tmp_path / "pid.json")
    who = processes.recall(tmp_path / "pid.json")
    assert who is not None
    return child, who


def test_the_program_name_in_proc_stat_may_hold_brackets_and_spaces() -> None:
    fields = " ".join(["S", *map(str, range(4, 22)), "987654", "0"])

    assert processes.parse_stat(f"42 (tmux: server (1) x) {fields}") == ("S", 987654)


def test_ending_a_process_ends_it_and_only_then_returns(tmp_path: Path) -> None:
    child, who = started(tmp_path)

    processes.end(who)

    assert not processes.alive(who)
    assert child.wait(timeout=5) == -15


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    child, who = started(tmp_path, STUBBORN)
    deadline = time.monotonic() + 10
    while "deaf" not in (tmp_path / "log").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)

    processes.end(who, grace_s=0.1)

    assert child.wait(timeout=5) == -9


@pytest.mark.parametrize("stranger", [{"start_ticks": 1}, {"boot": "another-boot"}])
def test_a_stranger_with_our_old_pid_is_left_alone(tmp_path: Path, stranger: dict[str, int | str]) -> None:
    child, who = started(tmp_path)

    processes.end(replace(who, **stranger))

    assert child.poll() is None
    processes.end(who)
    child.wait(timeout=5)


def test_a_pid_file_of_a_dead_process_or_with_garbage_recalls_nobody(tmp_path: Path) -> None:
    child, who = started(tmp_path)
    processes.end(who)
    child.wait(timeout=5)
    (tmp_path / "garbage.json").write_text('{"pid": 1}')

    assert processes.recall(tmp_path / "pid.json") is None
    assert processes.recall(tmp_path / "garbage.json") is None
    assert processes.recall(tmp_path / "missing.json") is None


def test_a_zombie_counts_as_ended(tmp_path: Path) -> None:
    child = processes.spawn([sys.executable, "-c", ""], log=tmp_path / "log")
    deadline = time.monotonic() + 10
    while processes.identify(child.pid) and time.monotonic() < deadline:
        time.sleep(0.01)

    assert processes.identify(child.pid) is None
    child.wait(timeout=5)


def test_a_child_that_is_ended_by_its_pid_file_is_waited_for(tmp_path: Path) -> None:
    child, who = started(tmp_path)

    processes.end(who)

    assert child.returncode == -15, "not waited for: a zombie, and a ResourceWarning when Python ends"
    assert child.pid not in processes.wait_for_ended_children()


def test_the_guard_ends_its_wards_when_its_owner_is_killed(tmp_path: Path) -> None:
    owner = f"""
import time
from pathlib import Path
from e2e.cluster import processes
guard = processes.Guard()
child = processes.spawn({SLEEPER!r}, log=Path({str(tmp_path / "log")!r}))
guard.watch(processes.identify(child.pid))
processes.remember(Path({str(tmp_path / "pid.json")!r}), processes.identify(child.pid))
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", owner], cwd=Path(__file__).parents[2]) as parent:
        deadline = time.monotonic() + 20
        while (ward := processes.recall(tmp_path / "pid.json")) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert ward is not None

        parent.kill()

    while processes.alive(ward) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not processes.alive(ward)


def test_a_command_that_cannot_start_says_what_is_missing(tmp_path: Path) -> None:
    from e2e.cluster.base import run

    with pytest.raises(ClusterError, match="no-such-program is not there"):
        run(["no-such-program"], timeout_s=5)
    with pytest.raises(ClusterError, match="took more than"):
        run(SLEEPER, timeout_s=0.2)


def test_a_process_that_lost_its_pid_file_is_found_by_its_mark_and_others_are_left(tmp_path: Path) -> None:
    ours = processes.spawn(SLEEPER, log=tmp_path / "log", env=processes.marked(tmp_path / "a"))
    other = processes.spawn(SLEEPER, log=tmp_path / "log", env=processes.marked(tmp_path / "ab"))

    processes.sweep(tmp_path / "a")

    assert ours.wait(timeout=5) == -15
    assert other.poll() is None
    other.kill()
    other.wait(timeout=5)


def test_threads_that_write_the_same_file_at_once_do_not_take_each_others(tmp_path: Path) -> None:
    target, started = tmp_path / "shared", threading.Barrier(8, timeout=10)

    def write(number: int) -> None:
        started.wait()
        for _ in range(50):
            write_atomically(target, str(number) * 1000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))

    assert len(set(target.read_text())) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["shared"]

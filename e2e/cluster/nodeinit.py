"""Process 1 of a node: runs inside the node's own pid, mount and network namespaces.

It prepares private mounts, waits for the network, keeps the node's daemons running and reaps orphans. When
it ends, the kernel ends every process of the node and drops its mounts and links: nothing can be left over.
Started as ``python3 -I -S nodeinit.py SPEC.json``; imports nothing of ours, so that it is one readable page.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0


def mount_privately(spec: dict[str, Any]) -> None:
    """Our folders and files over the machine's, seen by this node only."""
    for source, target in spec["binds"]:
        subprocess.run(["mount", "--bind", source, target], check=True)
    # Pods may ask for mount propagation; it ends at this namespace, whose root is no peer of the host's.
    subprocess.run(["mount", "--make-rshared", "/"], check=True)


def wait_for(path: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not Path(path).exists():
        if time.monotonic() > deadline:
            sys.exit(f"{path} did not appear within {timeout_s:g} s")
        time.sleep(0.02)


class Daemon:
    """One program that is started again, later and later, when it ends."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self.entry = entry
        self.pid = 0
        self.start_at = 0.0
        self._pause = FIRST_PAUSE_S

    def start(self) -> None:
        for path in self.entry["after"]:
            if not Path(path).exists():
                self.start_at = time.monotonic() + 0.05
                return
        with Path(self.entry["log"]).open("ab") as log:
            self.pid = subprocess.Popen(
                self.entry["command"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.entry["environment"]},
                start_new_session=True,
            ).pid

    def ended(self, status: int) -> None:
        print(f"{self.entry['name']} ended with status {status}; again in {self._pause:g} s", flush=True)
        self.pid = 0
        self.start_at = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE_S)


def supervise(daemons: list[Daemon]) -> None:
    """For ever: start what is due, reap what ended (orphans of pods too)."""
    while True:
        for daemon in daemons:
            if not daemon.pid and time.monotonic() >= daemon.start_at:
                daemon.start()
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pid, status = 0, 0
        if not pid:
            time.sleep(0.1)
        for daemon in daemons:
            if pid and daemon.pid == pid:
                daemon.ended(status)


def main() -> None:
    # Process 1 gets only the signals that it asks for.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    spec = json.loads(Path(sys.argv[1]).read_text())
    mount_privately(spec)
    wait_for(spec["network_ready"], 30)
    supervise([Daemon(entry) for entry in spec["daemons"]])


if __name__ == "__main__":
    main()

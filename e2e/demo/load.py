"""A bounded load on an OpenAI endpoint: streamed completions, for some seconds or until SIGTERM.

Closed loop: a client sends its next request when the last one ends, or, with `--every`, so many seconds after
it sent the last one, if that is later.

Runs inside the cluster as a Job, so that requests spread over the replicas as they do in production
(`kubectl port-forward` pins one pod). Standard library only: it also runs in the stand-in's small image.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass
from urllib.parse import urlsplit

PROMPTS = (
    "What does os.path.join do?",
    "Explain the json module.",
    "How do I open a file?",
    "What is a generator?",
    "Describe threading.Lock.",
)


@dataclass(frozen=True)
class Outcome:
    """One request: `served`, `refused` (no answer was begun) or `cut` (begun, then broken off)."""

    kind: str
    first_token_s: float = 0.0


def one_request(url: str, model: str, prompt: str, tokens: int) -> Outcome:
    """Stream one chat completion to its end."""
    target = urlsplit(url)
    connection = http.client.HTTPConnection(target.hostname or "", target.port or 80, timeout=60)
    body = {"model": model, "stream": True, "max_tokens": tokens, "ignore_eos": True, "temperature": 1.0,
            "messages": [{"role": "user", "content": prompt}]}  # fmt: skip
    began = time.monotonic()
    try:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
    except (OSError, http.client.HTTPException):
        connection.close()
        return Outcome("refused")
    try:
        return read_stream(response, began) if response.status == 200 else Outcome("refused")
    except (OSError, http.client.HTTPException):
        return Outcome("cut")
    finally:
        connection.close()


def read_stream(response: http.client.HTTPResponse, began: float) -> Outcome:
    """Read server-sent events up to `[DONE]`; without it the answer was cut."""
    first = 0.0
    while line := response.readline():
        if line.startswith(b"data: [DONE]"):
            return Outcome("served", first)
        if not first and line.startswith(b"data:") and b'"content"' in line:
            first = time.monotonic() - began
    return Outcome("cut", first)


def worker(args: argparse.Namespace, over: threading.Event, results: list[Outcome]) -> None:
    turn = 0
    while not over.is_set() or len(results) < args.requests:
        sent = time.monotonic()
        outcome = one_request(args.url, args.model, PROMPTS[turn % len(PROMPTS)], args.tokens)
        results.append(outcome)
        turn += 1
        if outcome.kind != "served":
            over.wait(0.5)  # honour the queue limit instead of hammering
        over.wait(max(0.0, sent + args.every - time.monotonic()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--every", type=float, default=0, help="seconds between two requests of a client")
    parser.add_argument("--requests", type=int, default=0, help="the load does not end before so many")
    args = parser.parse_args()
    results: list[Outcome] = []
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    threads = [threading.Thread(target=worker, args=(args, over, results)) for _ in range(args.concurrency)]
    for thread in threads:
        thread.start()
    over.wait(args.seconds)
    over.set()
    for thread in threads:
        thread.join()
    kinds = Counter(outcome.kind for outcome in results)
    first = sorted(outcome.first_token_s for outcome in results if outcome.kind == "served")
    p90 = f"{first[int(0.9 * (len(first) - 1))] * 1000:.0f} ms" if first else "-"
    print(f"{kinds['served']} served, {kinds['refused']} refused, {kinds['cut']} cut, TTFT P90 {p90}")


if __name__ == "__main__":
    main()

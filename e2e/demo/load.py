"""A bounded load on an OpenAI endpoint: closed loop, streamed completions, a fixed number of seconds.

Runs inside the cluster as a Job, so that requests spread over the replicas as they do in production
(`kubectl port-forward` pins one pod). Standard library only: it also runs in the stand-in's small image.
"""

from __future__ import annotations

import argparse
import http.client
import json
import threading
import time
from urllib.parse import urlsplit

PROMPTS = (
    "What does os.path.join do?",
    "Explain the json module.",
    "How do I open a file?",
    "What is a generator?",
    "Describe threading.Lock.",
)


def one_request(url: str, model: str, prompt: str, tokens: int) -> float | None:
    """Stream one completion; return the seconds to its first token, None when it was refused."""
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
        if response.status != 200:
            return None
        first = None
        while line := response.readline():
            if first is None and line.startswith(b"data:"):
                first = time.monotonic() - began
        return first
    except OSError:
        return None
    finally:
        connection.close()


def worker(args: argparse.Namespace, until: float, results: list[float | None]) -> None:
    turn = 0
    while time.monotonic() < until:
        took = one_request(args.url, args.model, PROMPTS[turn % len(PROMPTS)], args.tokens)
        results.append(took)
        turn += 1
        if took is None:
            time.sleep(0.5)  # refused: honour the queue limit instead of hammering


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    results: list[float | None] = []
    until = time.monotonic() + args.seconds
    threads = [threading.Thread(target=worker, args=(args, until, results)) for _ in range(args.concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    served = sorted(took for took in results if took is not None)
    p90 = f"{served[int(0.9 * (len(served) - 1))] * 1000:.0f} ms" if served else "-"
    print(f"{len(served)} served, {len(results) - len(served)} refused, TTFT P90 {p90}")


if __name__ == "__main__":
    main()

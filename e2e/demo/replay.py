"""Replay recorded arrivals on an OpenAI endpoint: each request at its time, whether or not others have ended.

Open loop. Reads a line of CSV per request (seconds, prompt tokens, answer tokens) and prints one of JSON per
request: its arrival, its outcome, TTFT and TPOT in seconds as the client sees them. Each has a connection
of its own, so that a Service draws its replica. Standard library only: it runs in a small image.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

LEAD_S = 2.0  # from the first line of the log to the first arrival's zero
LOWEST_ID, VOCABULARY = 16, 4000  # of prompts: no special token of the tiny model


def request(
    url: str, model: str, number: int, prompt_tokens: int, answer_tokens: int
) -> tuple[str, float, float]:
    """Stream one completion to its end; return its outcome, and seconds to its first and its last token."""
    ids = random.Random(number)  # noqa: S311  (no secret)
    prompt = [ids.randrange(LOWEST_ID, VOCABULARY) for _ in range(prompt_tokens)]
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": answer_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    target = urlsplit(url)
    connection = http.client.HTTPConnection(target.hostname or "", target.port or 80, timeout=120)
    began, first, last = time.monotonic(), 0.0, 0.0
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            return f"refused {response.status}", 0.0, 0.0
        while line := response.readline():
            if line.startswith(b"data: [DONE]"):
                return "served", first, last
            if line.startswith(b"data:"):
                last = time.monotonic() - began
                first = first or last
    except (OSError, http.client.HTTPException) as error:
        return ("cut" if first else "refused") + f" {type(error).__name__}", first, last
    finally:
        connection.close()
    return "cut", first, last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=Path, required=True)
    args = parser.parse_args()
    lines = [line.split(",") for line in args.requests.read_text().splitlines()]
    lock = threading.Lock()
    begin = time.monotonic() + LEAD_S
    print(json.dumps({"began_at": time.time() + LEAD_S}), flush=True)

    def one(number: int, arrival_s: float, prompt: int, answer: int) -> None:
        late_s = time.monotonic() - begin - arrival_s
        outcome, first_s, last_s = request(args.url, args.model, number, prompt, answer)
        tpot_s = (last_s - first_s) / (answer - 1) if answer > 1 else None
        row = {
            "arrival_s": arrival_s,
            "prompt": prompt,
            "answer": answer,
            "outcome": outcome,
            "ttft_s": first_s,
            "tpot_s": tpot_s,
            "late_s": late_s,
        }
        with lock:
            print(json.dumps(row), flush=True)

    threads = []
    for number, (arrival, prompt, answer) in enumerate(lines):
        time.sleep(max(0.0, begin + float(arrival) - time.monotonic()))
        thread = threading.Thread(target=one, args=(number, float(arrival), int(prompt), int(answer)))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()
    sys.stdout.flush()


if __name__ == "__main__":
    main()

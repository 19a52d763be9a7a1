"""Ask the demo's model one question through the official `openai` client, streamed to the terminal."""

from __future__ import annotations

import argparse
import sys
import time

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="base URL, with /v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--question", default="Who are you?")
    args = parser.parse_args()
    client = OpenAI(base_url=args.url, api_key="none", max_retries=3, timeout=60)
    began = time.monotonic()
    first = None
    words = 0
    stream = client.chat.completions.create(
        model=args.model,
        messages=[{"role": "user", "content": args.question}],
        stream=True,
        max_tokens=64,
        temperature=0.0,
    )
    sys.stdout.write(f"    you:   {args.question}\n    model: ")
    for chunk in stream:
        text = chunk.choices[0].delta.content if chunk.choices else None
        if text:
            first = first or time.monotonic() - began
            words += 1
            sys.stdout.write(text.replace("\n", " "))
            sys.stdout.flush()
    if first is None:
        sys.exit("the model answered nothing")
    sys.stdout.write(
        f"\n    first token after {first * 1000:.0f} ms, {words} chunks in {time.monotonic() - began:.2f} s\n"
    )


if __name__ == "__main__":
    main()

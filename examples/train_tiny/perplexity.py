"""Perplexity and bits per byte of a model folder, on the held-out documents or on a file.

python examples/train_tiny/perplexity.py models/tangram-tiny [--text tests/tiny_model/heldout.txt]
"""

import argparse
import math
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

WINDOW = (
    512  # tokens; windows do not overlap, so each token is predicted once, from at most WINDOW - 1 before it
)


@torch.inference_mode()
def total_loss(model: PreTrainedModel, documents: list[list[int]]) -> tuple[float, int]:
    """Return (negative log likelihood in nats, predicted tokens). Each document opens with bos."""
    nats, count = 0.0, 0
    for ids in documents:
        for start in range(0, len(ids) - 1, WINDOW - 1):
            window = torch.tensor([ids[start : start + WINDOW]])
            logits = model(input_ids=window[:, :-1], use_cache=False).logits[0].float()
            nats += torch.nn.functional.cross_entropy(logits, window[0, 1:], reduction="sum").item()
            count += window.shape[1] - 1
    return nats, count


def held_out_loss(model: PreTrainedModel, documents: list[list[int]]) -> float:
    """Return the mean negative log likelihood per token, in nats."""
    nats, count = total_loss(model, documents)
    return nats / count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model", type=Path, help="folder with config.json, model.safetensors and tokenizer.json"
    )
    parser.add_argument(
        "--text", type=Path, help="one document; without it, the held-out documents of this Python's library"
    )
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    if arguments.text:
        texts = [arguments.text.read_text("utf-8")]
    else:
        from data import documents  # noqa: PLC0415 - it imports the whole standard library

        texts = [document.text for document in documents()[1]]
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    nats, count = total_loss(model, [tokenizer(text, verbose=False)["input_ids"] for text in texts])
    size = sum(len(text.encode()) for text in texts)
    print(f"{len(texts)} documents, {size} bytes, {count} tokens")
    print(f"perplexity {math.exp(nats / count):.2f} per token, {nats / math.log(2) / size:.3f} bits per byte")


if __name__ == "__main__":
    main()

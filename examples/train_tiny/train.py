"""Train the tiny model on the documentation of Python's standard library, on a CPU, in minutes.

    python examples/train_tiny/train.py --out build/tiny-base

The model is transformers' own LlamaForCausalLM, so what is saved loads everywhere. Muon trains the matrices,
AdamW the embedding and the norms; both follow one cosine.
"""

import argparse
import copy
import itertools
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from conversations import chats
from data import documents
from perplexity import held_out_loss
from tokenizers import Tokenizer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging
from vocabulary import BEGIN, END, MAX_POSITIONS, VOCABULARY_SIZE, render, train_tokenizer, write_tokenizer

TOKENS_PER_STEP = 3072
SHORT, LONG = 256, MAX_POSITIONS  # window lengths, in tokens
LONG_SHARE = 0.1  # of the steps, at the end: positions beyond SHORT are learned there
MUON_RATE, ADAM_RATE = 0.02, 4e-3


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder that receives the model")
    parser.add_argument("--start-from", type=Path, help="go on from this folder's weights and tokenizer")
    parser.add_argument(
        "--blend", type=float, default=1.0, help="share of the new weights in what is written"
    )
    parser.add_argument("--peak", type=float, default=1.0, help="scales both learning rates")
    parser.add_argument("--document-epochs", type=float, default=1.0)
    parser.add_argument("--chat-epochs", type=int, default=5, help="each epoch phrases the questions anew")
    parser.add_argument(
        "--steps", type=int, default=0, help="stop after so many steps (0: all; for measuring speed)"
    )
    parser.add_argument("--checkpoint-steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def build_model() -> LlamaForCausalLM:
    """3.8 M parameters: 1.0 M in the tied embedding, 0.7 M in each of four layers."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY_SIZE,
            hidden_size=256,
            intermediate_size=640,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=32,
            max_position_embeddings=MAX_POSITIONS,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=2,
        )
    )


def token_streams(arguments: argparse.Namespace) -> tuple[Tokenizer, list[int], list[list[int]]]:
    """Return the tokenizer, all training text as one stream of ids, and the held-out documents' ids."""
    rng = random.Random(arguments.seed)
    training, held_out = documents()
    talks = [render(chat) for _ in range(arguments.chat_epochs) for chat in chats(training, rng)]
    if arguments.start_from:
        tokenizer = Tokenizer.from_file(str(arguments.start_from / "tokenizer.json"))
    else:
        one_epoch = talks[: len(talks) // arguments.chat_epochs]
        tokenizer = train_tokenizer(itertools.chain((d.text for d in training), one_epoch))
    count = round(len(training) * arguments.document_epochs)
    order = rng.sample(training, len(training))  # a part of an epoch is a fair part of the library
    texts = [f"{BEGIN}{d.text}{END}\n" for d in itertools.islice(itertools.cycle(order), count)]
    # Long documents are cut before they are mixed with chats, so that one module does not fill whole batches.
    pieces = [
        ids[i : i + 2 * SHORT] for ids in _encode(tokenizer, texts) for i in range(0, len(ids), 2 * SHORT)
    ]
    pieces += _encode(tokenizer, talks)
    rng.shuffle(pieces)
    return (
        tokenizer,
        list(itertools.chain.from_iterable(pieces)),
        _encode(tokenizer, [BEGIN + d.text for d in held_out]),
    )


def _encode(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def batches(stream: list[int]) -> list[torch.Tensor]:
    """Cut the stream into [rows, length + 1] batches of equal token count, the long windows last."""
    flat = torch.tensor(stream)
    steps = len(flat) // TOKENS_PER_STEP
    long_from = round(steps * (1 - LONG_SHARE))
    result = []
    for step in range(steps - 1):
        length = SHORT if step < long_from else LONG
        start = step * TOKENS_PER_STEP
        result.append(flat[start : start + TOKENS_PER_STEP + 1].unfold(0, length + 1, length))
    return result


def rate(step: int, steps: int) -> float:
    """Linear warm-up over twenty steps, then half a cosine down to a twentieth."""
    return min((step + 1) / 20, 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def optimizers(model: LlamaForCausalLM, scale: float) -> list[torch.optim.Optimizer]:
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    muon = torch.optim.Muon(matrices, lr=MUON_RATE * scale, weight_decay=0.01, momentum=0.95)
    adam = torch.optim.AdamW(others, lr=ADAM_RATE * scale, betas=(0.9, 0.98), weight_decay=0.0)
    return [muon, adam]


def train(
    model: LlamaForCausalLM, data: list[torch.Tensor], peak: float = 1.0
) -> Iterator[tuple[int, float]]:
    """Yield (step, loss in nats per token) after each step."""
    pairs = [(o, o.param_groups[0]["lr"]) for o in optimizers(model, peak)]
    for step, batch in enumerate(data):
        for optimizer, highest in pairs:
            optimizer.param_groups[0]["lr"] = highest * rate(step, len(data))
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, _ in pairs:
            optimizer.step()
            optimizer.zero_grad()
        yield step, loss.item()


def blend(model: LlamaForCausalLM, before: dict[str, torch.Tensor], share: float) -> None:
    """Move the weights back towards those before training, so that tuning on chats unlearns less of the rest.

    Wortsman et al., Robust fine-tuning of zero-shot models, arXiv:2109.01903.
    """
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.lerp(before[name], weight, share))


def write_model(model: LlamaForCausalLM, folder: Path) -> None:
    """Write the weights in bfloat16 beside their config."""
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    (folder / "model.safetensors").chmod(
        0o644
    )  # it comes out private, and an engine in a pod is another user
    GenerationConfig(
        bos_token_id=0, eos_token_id=1, pad_token_id=2, do_sample=True, temperature=0.7, top_p=0.9
    ).save_pretrained(folder)


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    logging.disable_progress_bar()
    tokenizer, stream, held_out = token_streams(arguments)
    write_tokenizer(tokenizer, arguments.out)
    data = batches(stream)
    if arguments.start_from:
        model = LlamaForCausalLM.from_pretrained(arguments.start_from, dtype=torch.float32).train()
    else:
        model = build_model()
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f"{parameters / 1e6:.2f} M parameters, {len(stream) / 1e6:.2f} M tokens, {len(data)} steps",
        flush=True,
    )
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    began = time.perf_counter()
    for step, loss in train(model, data, arguments.peak):
        if step % 20 == 19:
            speed = (step + 1) * TOKENS_PER_STEP / (time.perf_counter() - began)
            print(f"step {step + 1:5d}  loss {loss:.3f}  {speed:6.0f} tokens/s", flush=True)
        if step + 1 == arguments.steps:
            break
        if (step + 1) % arguments.checkpoint_steps == 0:
            write_model(model, arguments.out)
    blend(model, before, arguments.blend)
    write_model(model, arguments.out)
    nats = held_out_loss(model.eval(), held_out)
    print(f"{time.perf_counter() - began:.0f} s; held-out perplexity {math.exp(nats):.2f}", flush=True)


if __name__ == "__main__":
    main()

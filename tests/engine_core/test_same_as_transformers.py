"""In float32 the decoder computes what `transformers` computes, for every family and variant."""

import pytest
import torch

from tangram_engine.checkpoint import read_checkpoint
from tangram_engine.kernels.ops import reference_ops
from tangram_engine.models import Decoder, load_weights
from tangram_engine.models.rope import Rope
from tangram_engine.run.attention.reference import Span, TorchAttention
from tests.support.tiny_checkpoints import VARIANTS

TOLERANCE = 1e-4
CPU = torch.device("cpu")


def decoder_of(directory):
    checkpoint = read_checkpoint(directory)
    return Decoder(checkpoint.spec, load_weights(checkpoint, torch.float32, CPU, reference_ops()))


def logits_of(decoder, tokens, chunks, block_size=4):
    """Logits of every position, computed in chunks of the given lengths over a scattered block table."""
    rope = Rope(decoder.spec, 256, torch.float32, CPU)
    attention = TorchAttention(decoder.spec, rope, 64, block_size, torch.float32)
    table = torch.randperm(64, generator=torch.Generator().manual_seed(0)).tolist()
    parts, start = [], 0
    with torch.inference_mode():
        for length in chunks:
            attention.plan([Span(start, length, table)], torch.arange(start, start + length))
            ids = torch.tensor(tokens[start : start + length])
            parts.append(decoder.logits(decoder.forward(ids, attention.attend)))
            start += length
    assert start == len(tokens)
    return torch.cat(parts)


@pytest.mark.parametrize(
    "chunks", [[150], [1] * 20 + [130], [7, 64, 1, 78]], ids=["whole", "single", "chunks"]
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_equal(checkpoint, variant, chunks):
    directory, reference = checkpoint(variant)
    tokens = torch.randint(3, 199, (150,), generator=torch.Generator().manual_seed(5)).tolist()
    with torch.inference_mode():
        expected = reference(torch.tensor([tokens])).logits[0]
    got = logits_of(decoder_of(directory), tokens, chunks)
    assert expected.std() > 0.1  # else agreement would mean nothing
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_are_equal_wherever_the_choice_is_clear(checkpoint, engine, run, greedy, variant):
    _, reference = checkpoint(variant)
    generator = torch.Generator().manual_seed(11)
    prompts = [torch.randint(3, 199, (5 + 17 * n,), generator=generator).tolist() for n in range(6)]
    outputs = run(engine(variant), [greedy(str(n), prompt, 24) for n, prompt in enumerate(prompts)])
    checked = skipped = 0
    for number, prompt in enumerate(prompts):
        tokens = [output.token for output in outputs[str(number)]]
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        top = logits.topk(2)
        for position, token in enumerate(tokens):
            clear = top.values[position, 0] - top.values[position, 1] > TOLERANCE
            skipped += not clear
            checked += int(clear)
            assert not clear or token == top.indices[position, 0]
    assert checked + skipped == 6 * 24
    assert skipped <= 2


def test_logprobs_are_those_of_the_model(checkpoint, engine, run, greedy):
    _, reference = checkpoint("llama")
    prompt = list(range(3, 40))
    outputs = run(engine(), [greedy("a", prompt, 6, logprobs=3), greedy("b", prompt, 6, logprobs=None)])
    tokens = [output.token for output in outputs["a"]]
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    for row, output in zip(expected, outputs["a"], strict=True):
        assert output.logprob == pytest.approx(row[output.token].item(), abs=TOLERANCE)
        assert [token for token, _ in output.top_logprobs] == row.topk(3).indices.tolist()
        assert [logprob for _, logprob in output.top_logprobs] == pytest.approx(
            row.topk(3).values.tolist(), abs=TOLERANCE
        )
    assert all(output.logprob is None and output.top_logprobs == () for output in outputs["b"])

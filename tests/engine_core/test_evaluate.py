"""A quantised format against the checkpoint's own: the figures, by another way to compute them."""

import copy
import math
import weakref

import pytest
import torch

from tangram_engine.checkpoint import read_checkpoint
from tangram_engine.evaluate import compare as module
from tangram_engine.evaluate.compare import compare, summary, windows
from tangram_engine.models import quantized_on_load
from tangram_engine.models.linear import Linear
from tangram_engine.models.weights import in_place
from tangram_engine.quantize import quantize

CPU = torch.device("cpu")
TEXTS = [
    tuple((7 * i * i + 3 * start) % 199 for i in range(length))
    for start, length in ((0, 40), (1, 33), (2, 2))
]


def quantised(directory, form):
    return quantized_on_load(read_checkpoint(directory).spec, form, torch.float32, CPU)


def compared(directory, make, texts=TEXTS):
    return compare(read_checkpoint(directory), texts, make, torch.float32, CPU)


def logits(model):
    """Next-token logits of every scored position, by transformers."""
    with torch.inference_mode():
        return torch.cat([model(torch.tensor([text])).logits[0, :-1] for text in TEXTS])


@pytest.mark.parametrize("variant", ["llama", "qwen2-tied", "qwen3"])
@pytest.mark.parametrize("form", ["fp8", "int4"])
def test_figures_are_those_of_transformers_with_the_quantised_weights(checkpoint, variant, form) -> None:
    directory, model = checkpoint(variant)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in other.named_parameters():
            if name.endswith("_proj.weight"):
                weight.copy_(quantize(weight, form).dequantized(torch.float32))
    targets = torch.tensor([token for text in TEXTS for token in text[1:]])
    p, q = (logits(each).double().log_softmax(-1) for each in (model, other))
    nll = [-each.gather(1, targets[:, None]).mean().item() for each in (p, q)]

    found = compared(directory, quantised(directory, form))

    assert found.tokens == len(targets) == 39 + 32 + 1
    assert found.perplexity == pytest.approx(math.exp(nll[0]), rel=1e-4)
    assert found.quantised_perplexity == pytest.approx(math.exp(nll[1]), rel=1e-4)
    assert found.perplexity_increase == pytest.approx(math.exp(nll[1] - nll[0]) - 1, abs=1e-4)
    kl = (p.exp() * (p - q)).sum(-1)
    assert found.kl_mean == pytest.approx(kl.mean().item(), rel=1e-3, abs=1e-6)
    assert found.kl_p99 == pytest.approx(kl.max().item(), rel=1e-3, abs=1e-6)
    agreement = (p.argmax(-1) == q.argmax(-1)).double().mean().item()
    assert found.top1_agreement == pytest.approx(agreement, abs=1.5 / len(targets))


def test_a_format_that_changes_nothing_costs_nothing(checkpoint) -> None:
    found = compared(checkpoint()[0], in_place)

    assert (found.perplexity_increase, found.top1_agreement, found.kl_mean) == (0.0, 1.0, 0.0)
    assert found.standard_error == 0.0


def test_text_that_takes_several_passes_gives_the_same_figures(checkpoint, monkeypatch) -> None:
    whole = compared(checkpoint()[0], quantised(checkpoint()[0], "int4"))
    monkeypatch.setattr(module, "PASS_TOKENS", 40)

    parts = compared(checkpoint()[0], quantised(checkpoint()[0], "int4"))

    assert parts.tokens == whole.tokens
    assert parts.kl_mean == pytest.approx(whole.kl_mean, rel=1e-4)


def test_at_most_one_quantised_projection_is_in_memory(checkpoint) -> None:
    alive, most = weakref.WeakSet(), []

    def make(read, ops):
        made = Linear(*read(), ops)
        alive.add(made)
        most.append(len(alive))
        return made

    compared(checkpoint()[0], make)

    assert len(most) == 2 * 4  # four projections in each of two layers
    assert max(most) == 1


def test_logits_that_are_not_finite_are_not_figures() -> None:
    scores = torch.tensor([[1.0, 1.0], [1.0, math.nan], [1.0, 1.0], [0.0, math.nan]], dtype=torch.float64)

    assert not summary(scores).is_finite


@pytest.mark.parametrize(("length", "tokens"), [(2, 9), (100, 9), (600, 4096), (5000, 700), (1100, 1022)])
def test_windows_score_as_many_tokens_as_asked_where_the_text_is_long_enough(
    checkpoint, length, tokens
) -> None:
    spec = read_checkpoint(checkpoint()[0]).spec
    ids = tuple(range(10, 10 + length))

    found = windows(ids, spec, tokens)

    size = spec.max_position_embeddings
    assert all(window[0] == spec.bos_token_id and 2 <= len(window) <= size for window in found)
    assert sum(len(window) - 1 for window in found) == min(length, tokens)
    assert [token for window in found for token in window[1:]] == list(ids[:tokens])

"""What a step needs beside the pool has a bound, and on a GPU the start goes as far as that bound."""

from types import SimpleNamespace

import pytest
import torch

from tangram_engine.models.rope import Rope
from tangram_engine.run.attention import reference as module
from tangram_engine.run.attention.reference import Span, TorchAttention
from tangram_engine.run.load import warm_up
from tangram_engine.schedule import SchedulerLimits

SPEC = SimpleNamespace(
    layers=1,
    heads=4,
    kv_heads=2,
    head_dim=8,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    rope_scaling=None,
    unrotated_layers=(),
    attention_scale=None,
)
TOKEN_BYTES = 2 * 2 * 8 * 4


def attention():
    rope = Rope(SPEC, 256, torch.float32, torch.device("cpu"))
    built = TorchAttention(SPEC, rope, 64, 4, torch.float32)
    built.pool.normal_(generator=torch.Generator().manual_seed(0))
    return built


def plan(attention, spans):
    positions = [position for span in spans for position in range(span.start, span.end)]
    attention.plan(spans, torch.tensor(positions))


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("sequences", [1, 7, 64])
def test_sequences_that_share_their_blocks_are_not_all_collected_at_once(monkeypatch, sequences):
    table = list(range(63))
    spans = [Span(250, 1, [*table[:62], 62]) for _ in range(sequences)]
    q, kv = random(sequences, 4, 8), random(sequences, 2, 8)
    kv[:] = kv[0]  # they also write to one place
    plain = attention()
    plan(plain, spans)
    wanted = plain.store_and_attend(0, q, kv, kv)

    monkeypatch.setattr(module, "COLLECTED_BYTES", 3 * 252 * TOKEN_BYTES)
    bounded = attention()
    plan(bounded, spans)
    torch.testing.assert_close(bounded.store_and_attend(0, q, kv, kv), wanted)
    assert bounded._collected.nbytes <= 3 * 252 * TOKEN_BYTES


def test_a_single_sequence_over_the_bound_still_runs(monkeypatch):
    monkeypatch.setattr(module, "COLLECTED_BYTES", 1)
    bounded = attention()
    plan(bounded, [Span(250, 1, list(range(63)))] * 2)
    assert bounded.store_and_attend(0, random(2, 4, 8), random(2, 2, 8), random(2, 2, 8)).isfinite().all()


@pytest.mark.parametrize("start", [1, 7, 100])
def test_a_long_span_in_pieces_is_the_span_in_one(monkeypatch, start):
    span = Span(start, 50, list(range(40)))
    q, k, v = random(50, 4, 8), random(50, 2, 8), random(50, 2, 8)
    plain = attention()
    plan(plain, [span])
    wanted = plain.store_and_attend(0, q, k, v)

    queries = []
    sdpa = module.functional.scaled_dot_product_attention

    def watched(q, *rest, **options):
        queries.append(q.shape[1] * q.shape[2])
        return sdpa(q, *rest, **options)

    monkeypatch.setattr(module.functional, "scaled_dot_product_attention", watched)
    monkeypatch.setattr(module, "SCORES", 12 * span.end)
    pieces = attention()
    plan(pieces, [span])
    torch.testing.assert_close(pieces.store_and_attend(0, q, k, v), wanted)
    assert max(queries) <= 12
    assert sum(queries) == 50 * 4


class Recorder:
    """A runner that computes nothing."""

    device = torch.device("cpu")

    def __init__(self):
        self.steps = []

    def launch(self, rows):
        self.steps.append([(row.start, row.length) for row in rows])
        assert all(len(row.tokens) == row.length for row in rows)
        assert all(len(row.sequence.table) * 4 >= row.start + row.length for row in rows)
        assert len({row.sequence.slot for row in rows}) == len(rows)
        return SimpleNamespace(result=list)


@pytest.mark.parametrize(
    ("budget", "context", "steps"),
    [
        (
            200,
            100,
            [
                [(99, 1)] * 8,
                [(0, 99), (0, 99), (0, 2)],
                [(1, 99), (1, 99), (98, 2)],
                [*[(99, 1)] * 5, (1, 99), (4, 96)],
            ],
        ),
        (16, 100, [[(99, 1)] * 8, [(0, 16)], [(84, 16)], [*[(99, 1)] * 7, (91, 9)]]),
        (16, 4, [[(3, 1)] * 8, [(0, 16)], [*[(3, 1)] * 7, (7, 9)]]),
        (200, 4, [[(3, 1)] * 8, [(0, 99), (0, 99), (0, 2)], [*[(3, 1)] * 5, (0, 99), (3, 96)]]),
        (9999, 4, [[(3, 1)] * 8, [(0, 99)] * 8, [(0, 99)] * 8]),
    ],
)
def test_warming_up_takes_as_many_tokens_and_as_long_contexts_as_a_step_can_have(budget, context, steps):
    runner = Recorder()
    warm_up(runner, SchedulerLimits(8, budget, 100), block_size=4, context=context)
    assert runner.steps == steps


@pytest.mark.parametrize("variant", ["llama", "qwen2", "qwen3"])
def test_a_warm_up_as_on_a_gpu_runs_and_leaves_no_trace(engine, run, greedy, variant):
    one, other = engine(variant), engine(variant)
    warm_up(one._runner, one._scheduler.limits, 4, one.info.max_model_len)
    request = greedy("a", range(5, 40), 8)
    tokens = [[output.token for output in run(each, [request])["a"]] for each in (one, other)]
    assert tokens[0] == tokens[1]

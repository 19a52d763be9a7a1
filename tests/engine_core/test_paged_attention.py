"""Attention over device rows equals that over lists of blocks and `transformers`; it runs on a fake GPU."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from tangram_engine.checkpoint import read_checkpoint
from tangram_engine.kernels import ops, store_kv, tiles
from tangram_engine.models import Decoder, load_weights
from tangram_engine.models.rope import Rope
from tangram_engine.run.attention.paged import PagedAttention, workspace_bytes
from tangram_engine.run.attention.paged_prefill import CollectedPrefill
from tangram_engine.run.attention.reference import Span, TorchAttention

CPU = torch.device("cpu")
REFERENCES = ops.reference_ops()
SIZE, BLOCKS, LONGEST = 4, 60, 64
SPEC = SimpleNamespace(
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    rope_scaling=None,
    unrotated_layers=(1,),
    attention_scale=0.2,
)
LAYERS = (
    SimpleNamespace(q_norm=None, k_norm=None),
    SimpleNamespace(q_norm=torch.rand(8), k_norm=torch.rand(8)),
)
STEPS = {  # of rows 0, 1, ...: (tokens that are there already, new tokens)
    "decode": [(3, 1), (16, 1), (0, 1), (40, 1)],
    "ragged": [(0, 1), (63, 1), (31, 1)],
    "prefill": [(0, 9)],
    "chunk": [(5, 8)],
    "mixed": [(7, 1), (20, 1), (0, 12), (9, 7), (3, 2)],
}


def paged(tables, table=REFERENCES, prefill=None, dtype=torch.float32):
    return PagedAttention(SPEC, tables, BLOCKS, SIZE, dtype, LONGEST, table, prefill)


def tables_of(rows, seed=0):
    """Scattered blocks for each row and, for the padding row, the block that no request owns."""
    scattered = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(seed)).int()
    tables = torch.full((rows + 1, LONGEST // SIZE), BLOCKS, dtype=torch.int32)
    for row in range(rows):
        tables[row, : BLOCKS // rows] = scattered[row * (BLOCKS // rows) :][: LONGEST // SIZE][
            : BLOCKS // rows
        ]
    return tables


def spans_of(step, tables):
    return [Span(start, length, tables[row].tolist(), row) for row, (start, length) in enumerate(step)]


def positions_of(spans):
    return torch.tensor([position for span in spans for position in range(span.start, span.end)])


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_every_step_attends_as_it_does_over_lists_of_blocks(step):
    torch.manual_seed(0)
    tables = tables_of(len(step))
    pages = paged(tables)
    lists = TorchAttention(SPEC, Rope(SPEC, LONGEST, torch.float32, CPU), BLOCKS, SIZE, torch.float32)
    for attention in (pages, lists):
        attention.pool.fill_(math.nan)  # whatever a former owner left must not matter
    spans = spans_of(step, tables)
    before = [Span(0, span.start, span.table, span.row) for span in spans if span.start]
    for planned in (*([span] for span in before), spans):
        positions = positions_of(planned)
        for attention in (pages, lists):
            attention.plan(planned, positions)
        for index, layer in enumerate(LAYERS):
            qkv = torch.randn(len(positions), 8 * SPEC.head_dim)
            got = pages.attend(index, qkv, layer)
            torch.testing.assert_close(got, lists.attend(index, qkv, layer), rtol=1e-4, atol=1e-5)


def test_single_tokens_need_nothing_but_device_rows():
    tables = tables_of(3)
    attention = paged(tables)
    attention.pool.normal_()
    rows, positions = torch.tensor([2, 0], dtype=torch.int32), torch.tensor([5, 9], dtype=torch.int32)
    qkv = torch.randn(2, 8 * SPEC.head_dim)

    attention.plan([Span(5, 1, (), 2), Span(9, 1, (), 0)], positions)
    planned = attention.attend(0, qkv, LAYERS[0])
    attention.plan_decodes(rows, positions)

    assert torch.equal(attention.attend(0, qkv, LAYERS[0]), planned)


def test_the_padding_row_writes_to_no_block_of_a_request():
    attention = paged(tables_of(2))
    attention.pool.fill_(1.0)

    attention.plan_decodes(torch.tensor([2, 2], dtype=torch.int32), torch.zeros(2, dtype=torch.int32))
    attention.attend(0, torch.randn(2, 8 * SPEC.head_dim), LAYERS[0])

    assert (attention.pool[:, :BLOCKS] == 1.0).all()
    assert attention.resize(7) == attention.pool.nbytes
    assert attention.pool.shape[1] == 8


def test_the_workspace_is_what_is_allocated_and_never_grows(monkeypatch):
    allocated = []
    empty = torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda *shape, **how: allocated.append(empty(*shape, **how)) or allocated[-1]
    )
    tables = tables_of(4)
    attention = paged(tables)

    kept = sum(t.nbytes for t in allocated if t.data_ptr() != attention.pool.data_ptr())
    rope = 4 * LONGEST * SPEC.head_dim
    assert kept + rope == workspace_bytes(SPEC, SIZE, torch.float32, 4, LONGEST)
    for step in STEPS.values():
        del allocated[:]
        if len(step) <= 4:
            spans = spans_of(step, tables)
            attention.plan(spans, positions_of(spans))
            attention.attend(0, torch.randn(sum(n for _, n in step), 8 * SPEC.head_dim), LAYERS[0])
    assert not allocated


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_every_step_runs_on_fake_tensors_of_a_gpu(step):
    def flash(q, keys, values):  # what causal_attention calls on a GPU; its subclass of Tensor has no fake
        return torch.ops.aten._scaled_dot_product_flash_attention(q, keys, values, 0.0, True)[0]

    spans = spans_of(step, torch.zeros(len(step), 1))
    # With cuDNN among the choices torch asks a GPU for its capability.
    choices = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    with FakeTensorMode(), torch.inference_mode(), sdpa_kernel(choices):
        device = torch.device("cuda", 0)
        tables = torch.empty(len(step) + 1, LONGEST // SIZE, dtype=torch.int32, device=device)
        prefill = CollectedPrefill(SPEC, SIZE, torch.bfloat16, device, LONGEST, flash)
        attention = paged(tables, prefill=prefill, dtype=torch.bfloat16)
        tokens = sum(length for _, length in step)
        attention.plan(spans, torch.empty(tokens, dtype=torch.int64, device=device))
        norm = torch.empty(SPEC.head_dim, dtype=torch.bfloat16, device=device)
        layer = SimpleNamespace(q_norm=norm, k_norm=norm)
        qkv = torch.empty(tokens, 8 * SPEC.head_dim, dtype=torch.bfloat16, device=device)

        out = attention.attend(1, qkv, layer)

    assert (out.shape, out.dtype, out.device) == ((tokens, 4 * SPEC.head_dim), torch.bfloat16, device)


@pytest.mark.parametrize("variant", ["llama-tied-llama3-rope", "qwen3-tied"])
def test_a_decoder_of_kernels_computes_what_transformers_computes(checkpoint, variant, monkeypatch):
    monkeypatch.setattr(store_kv, "FEW_TOKENS", 0)  # all heads in one program: interpreted, each costs 10 ms
    large = tiles.TILES["small_linear", 0, 0] | {"BLOCK_N": 128}
    monkeypatch.setitem(tiles.TILES, ("small_linear", 0, 0), large)
    directory, reference = checkpoint(variant)
    found = read_checkpoint(directory)
    decoder = Decoder(found.spec, load_weights(found, torch.float32, CPU, ops.kernel_ops()))
    tables = tables_of(2)
    attention = PagedAttention(found.spec, tables, BLOCKS, SIZE, torch.float32, LONGEST, ops.kernel_ops())
    attention.pool.fill_(math.nan)
    tokens = torch.randint(3, 199, (2, 11), generator=torch.Generator().manual_seed(5))
    table = tables.tolist()
    steps = [  # whole, chunk beside a single token, single tokens
        [Span(0, 6, table[0], 0)],
        [Span(6, 1, table[0], 0), Span(0, 5, table[1], 1)],
        [Span(7, 1, table[0], 0), Span(5, 1, table[1], 1)],
    ]
    with torch.inference_mode():
        expected = reference(tokens).logits
        for spans in steps:
            attention.plan(spans, positions_of(spans))
            ids = torch.cat([tokens[span.row, span.start : span.end] for span in spans])
            got = decoder.logits(decoder.forward(ids, attention.attend))
            wanted = torch.cat([expected[span.row, span.start : span.end] for span in spans])
            torch.testing.assert_close(got, wanted, atol=1e-4, rtol=0)

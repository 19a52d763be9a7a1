"""A lower bound on the time per output token: no step is faster than reading what it must read."""

from tangram.fleet import CheckpointFacts


def step_bytes(facts: CheckpointFacts) -> int:
    """Bytes that a decode step of one request reads at least: all weights.

    Of an input embedding that is not tied to the output projection one row is read, which is nothing.
    """
    return facts.weight_bytes - (0 if facts.tied_embeddings else facts.embedding_bytes)


def tpot_bound_ms(facts: CheckpointFacts, mem_bw_gbps: float, memory_share: float = 1.0) -> float:
    """Return the bound in milliseconds at batch 1.

    `mem_bw_gbps` is the whole GPU's bandwidth in GB/s; a MIG slice has the share of its memory slices (m/8),
    not of its compute slices. Datasheet bandwidth, so real steps are slower: a shape that fails this bound
    fails for sure.
    """
    return step_bytes(facts) / (mem_bw_gbps * 1e9 * memory_share) * 1e3

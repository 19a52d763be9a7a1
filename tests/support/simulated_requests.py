"""Small requests and small engines, for properties of simulated replicas."""

from hypothesis import strategies as st

from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.load.traffic import SimulatedRequest

BLOCK = 4
KV_TOKENS = 160


@st.composite
def traffic(draw: st.DrawFn) -> list[SimulatedRequest]:
    """Up to 40 small requests, some of them together."""
    gaps = st.sampled_from([0.0, 0.0, 0.37, 5.13, 40.9])
    now, requests = 0.0, []
    for _ in range(draw(st.integers(1, 40))):
        now += draw(gaps)
        requests.append(SimulatedRequest(now, draw(st.integers(1, 60)), draw(st.integers(1, 50))))
    return requests


limits = st.builds(
    EngineLimits,
    max_running=st.integers(1, 12),
    max_batched_tokens=st.integers(1, 64),
    kv_tokens=st.sampled_from([None, KV_TOKENS, 2 * KV_TOKENS]),
    block_tokens=st.just(BLOCK),
)

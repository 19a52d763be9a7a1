"""The scaling law asks for bucket edges by name: one that the engine lacks reads as "no request made it"."""

import pytest

from tangram.scaling import queries
from tangram_engine.serve import metrics


@pytest.mark.parametrize(
    ("asked", "exported"),
    [(queries.TTFT_BUCKETS, metrics.TTFT_BUCKETS), (queries.TPOT_BUCKETS, metrics.ITL_BUCKETS)],
    ids=["ttft", "tpot"],
)
def test_every_edge_that_is_asked_for_is_exported(asked, exported):
    assert set(asked) <= set(exported)

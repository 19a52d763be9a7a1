"""What operator and engine must agree on without importing each other.

The scaling law asks for bucket edges by name: one that the engine lacks reads as "no request made it".
"""

from dataclasses import fields

import pytest

from tangram.fleet import DEFAULT_RUNNING_REQUESTS
from tangram.scaling import queries
from tangram_engine.config import EngineConfig
from tangram_engine.serve import metrics


@pytest.mark.parametrize(
    ("asked", "exported"),
    [(queries.TTFT_BUCKETS, metrics.TTFT_BUCKETS), (queries.TPOT_BUCKETS, metrics.ITL_BUCKETS)],
    ids=["ttft", "tpot"],
)
def test_every_edge_that_is_asked_for_is_exported(asked, exported):
    assert set(asked) <= set(exported)


def test_an_engine_without_flags_runs_as_many_requests_as_plans_count_on():
    defaults = {each.name: each.default for each in fields(EngineConfig)}

    assert defaults["max_num_seqs"] == DEFAULT_RUNNING_REQUESTS

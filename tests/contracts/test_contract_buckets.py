"""What operator and engine must agree on without importing each other.

The scaling law asks for bucket edges by name: one that the engine lacks reads as "no request made it".
"""

from dataclasses import fields
from urllib.parse import parse_qsl

import pytest
from prometheus_client import generate_latest

from tangram.fleet import DEFAULT_RUNNING_REQUESTS
from tangram.scaling import queries
from tangram.shell.measure import scraped_page
from tangram_engine.config import EngineConfig
from tangram_engine.messages import EngineInfo
from tangram_engine.serve import metrics

INFO = EngineInfo(16, 64, 512, 8, 512, 320, "float32", "fake", 0.0, 0.0)


@pytest.mark.parametrize(
    ("asked", "exported"),
    [(queries.TTFT_BUCKETS, metrics.TTFT_BUCKETS), (queries.TPOT_BUCKETS, metrics.ITL_BUCKETS)],
    ids=["ttft", "tpot"],
)
def test_every_edge_that_is_asked_for_is_exported(asked, exported):
    assert set(asked) <= set(exported)


def test_an_engine_that_is_asked_for_what_is_read_sends_all_of_it_and_no_more():
    engine = metrics.EngineMetrics("tiny")
    engine.engine_ready(INFO)
    names = [value for key, value in parse_qsl(scraped_page.QUERY) if key == "name[]"]

    page = generate_latest(engine.registry)
    restricted = generate_latest(engine.registry.restricted_registry(names))

    read = sorted(filter(scraped_page.is_wanted, page.split(b"\n")))
    assert len(read) == 89
    assert sorted(line for line in restricted.split(b"\n") if line and not line.startswith(b"#")) == read


def test_an_engine_without_flags_runs_as_many_requests_as_plans_count_on():
    defaults = {each.name: each.default for each in fields(EngineConfig)}

    assert defaults["max_num_seqs"] == DEFAULT_RUNNING_REQUESTS

"""What holds for all tests."""

import gc
import os
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.duration_report import DurationReport
from tests.support.processor_budget import load_table

# Triton reads this once, when it is imported: kernels of this process are interpreted on the host.
# The compile gate runs in a process of its own, without it.
os.environ["TRITON_INTERPRET"] = "1"

# What the command line prints is as wide as a pipe: pytest-xdist hands its workers a width of its own.
os.environ.pop("COLUMNS", None)

# A run that fails speaks of the change that it ran on: examples are random, and the same each time.
# `make explore` looks at others, and at how long an example takes: on a busy machine that says nothing.
# A test as a whole has its time limit in either.
settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", derandomize=False, print_blob=True)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--budget` and `--processor-budget`: see DurationReport."""
    parser.addoption(
        "--budget", type=float, metavar="SECONDS", help="wall-clock seconds that the run may take"
    )
    parser.addoption(
        "--processor-budget",
        action="store_true",
        help="compare the processor seconds of each file with tests/cpu_seconds.toml",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Report where the time of a run with a budget went."""
    if config.getoption("budget"):
        report = DurationReport(config.getoption("budget"), compared=config.getoption("processor_budget"))
        config.pluginmanager.register(report, "duration_report")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave modules and tests out of garbage collection: they stay, and are most objects of a process.

    A collection of all generations then takes a tenth of the time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)  # Python's 700 looks for cycles too often among millions of objects
        gc.enable()


def pytest_unconfigure() -> None:
    """Let the interpreter end as if nothing had been frozen."""
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Bury what the event loop of a test against a real API server left half closed.

    A TLS connection's shutdown outlives the loop, and whichever test the garbage collector ran in next would
    be blamed for it. Leaks of ours are found by unit tests, where warnings stay errors.
    """
    yield
    if item.get_closest_marker("apiserver") or item.get_closest_marker("cluster"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


# What is collected before the test ends.
LATE_TLS = (
    "ignore:Exception ignored in.*(socket|_SelectorTransport|SSL):pytest.PytestUnraisableExceptionWarning"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Whole files go to processes in this order: a long one that came last would run alone.
    seconds = load_table()
    items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], 0.0))
    for item in items:
        if item.get_closest_marker("apiserver") or item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.filterwarnings(LATE_TLS))
        # Those wait long before they give up. What needs a cluster has the limit of `make e2e`: its first
        # test also builds the images.
        if item.get_closest_marker("apiserver") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(300))

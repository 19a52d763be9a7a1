"""What holds for all tests."""

import pytest

# Tests against a real API server end with TLS connections whose shutdown outlives the test's event loop, and
# the next test would be blamed for them. Leaks of ours are found by unit tests, where warnings stay errors.
LATE_TLS = (
    "ignore:Exception ignored in.*(socket|_SelectorTransport|SSL):pytest.PytestUnraisableExceptionWarning"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("apiserver") or item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.filterwarnings(LATE_TLS))

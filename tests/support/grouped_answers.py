"""What a Prometheus returns to queries about many LLMDeployments, from a function of the test."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_TERM = re.compile(
    r'(?:label_replace\(){1,2}(?P<expression>(?!label_replace)(?:(?!"field").)+)'
    r', "field", "(?P<field>[^"]+)", "", ""\)'
    r'(?:, "part", "(?P<part>\d+)", "", ""\))?(?: or |$)'
)
_PODS = re.compile(r'pod=~"([^"]*)"')

Names = Mapping[str, tuple[str, str]]
"""Namespace and served name of each pod."""


class Term(NamedTuple):
    """One term of a query."""

    field: str
    expression: str
    pods: tuple[str, ...]
    part: str | None


def terms(promql: str) -> list[Term]:
    """The terms of a query, which they are all of."""
    found, end = [], 0
    for match in _TERM.finditer(promql):
        selected = _PODS.search(match["expression"])
        assert selected, promql
        assert match.start() == end, promql
        pods = tuple(name.replace("\\\\", "") for name in selected[1].split("|"))
        found.append(Term(match["field"], match["expression"], pods, match["part"]))
        end = match.end()
    assert end == len(promql), promql
    return found


def rows(promql: str, names: Names, value: Callable[[str, str], str | None]) -> list[dict[str, Any]]:
    """The rows of a result: `value(field, model_name)` is a number as text, or None without a series."""
    result = []
    for field, expression, pods, part in terms(promql):
        by_model = expression.startswith("histogram_quantile")
        groups = {
            (*names[pod], "" if by_model else pod.rpartition("-")[0]): None for pod in pods if pod in names
        }
        for group in groups:
            text = value(field, group[1])
            if text is not None:
                labels = dict(zip(("namespace", "model_name", "replica_set"), group, strict=True))
                more = {"part": part} if part else {}
                result.append({"metric": {"field": field, **labels, **more}, "value": [100.0, text]})
    return result


def answer(result: list[dict[str, Any]]) -> dict[str, Any]:
    """The JSON of a vector."""
    return {"status": "success", "data": {"resultType": "vector", "result": result}}

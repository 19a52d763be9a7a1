"""The rows that Prometheus returns to the queries about a fleet, added up by LLMDeployment."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tangram.scaling.fleet_queries import FleetQuery, MetricsSubject
from tangram.scaling.queries import wider_windows
from tangram.scaling.sample import AT_WINDOW

_LONGEST_NUMBER = 64  # characters
_QUOTED_CHARS = 32  # of a value that is no number

_Values = Mapping[str, Sequence[float]]
"""The values of one LLMDeployment by field, one for each of its ReplicaSets."""


class FleetAnswers:
    """The values of each LLMDeployment. A row of a pod with the names of another model counts for none."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._problems: dict[str, str] = {}
        self._models_of_others: set[tuple[str, str]] = set()

    def add(self, query: FleetQuery, rows: Sequence[Any]) -> None:
        """Add the rows of one answer, as JSON has them.

        A value that is no number is the problem of its LLMDeployment alone. Raises ValueError, KeyError,
        TypeError or AttributeError for rows that no Prometheus returns.
        """
        owners, values = query.owners, self._values
        for row in rows:
            labels = row["metric"]
            # An empty label is left out.
            key = labels.get("namespace", ""), labels.get("model_name", ""), labels.get("replica_set", "")
            uid = owners.get(key)
            if uid is None:
                self._models_of_others.add(key[:2])
                continue
            field, text = labels["field"], row["value"][1]
            try:
                values[uid][field].append(_number(text))
            except ValueError:
                self._problems.setdefault(uid, f"Prometheus returned {text[:_QUOTED_CHARS]!r} for {field}")

    def results(
        self, subject: MetricsSubject, window_s: float, evaluated_at: float
    ) -> Mapping[str, float | None]:
        """Return what `queries.for_deployment` would return, by the same names.

        Raises ValueError if a value of this LLMDeployment is no number.
        """
        if subject.uid in self._problems:
            raise ValueError(self._problems[subject.uid])
        values: _Values = self._values.get(subject.uid, {})
        scraped_at = values.get("scraped_at")
        results = {
            "targets": _sum(values, "targets"),
            "age_s": evaluated_at - max(scraped_at) if scraped_at else None,
            "waiting": _sum(values, "waiting"),
            "running": _sum(values, "running"),
            "kv_usage": _sum(values, "kv_usage"),
        } | _over_window(values, subject, "")
        # Prometheus summed these by namespace and model, so pods of others may be in them.
        alone = (subject.namespace, subject.served_name) not in self._models_of_others
        if subject.objectives.ttft:
            results["ttft_s"] = _sum(values, "ttft_s") if alone else None
        if subject.objectives.tpot:
            results["tpot_s"] = _sum(values, "tpot_s") if alone else None
        for wider_s in wider_windows(window_s):
            results |= _over_window(values, subject, f"{AT_WINDOW}{wider_s}")
        return results


def _over_window(values: _Values, subject: MetricsSubject, suffix: str) -> dict[str, float | None]:
    # A sum without the pods that do not export the counter would be too low.
    counted = f"pods_without_arrived{suffix}" not in values
    results = {
        "running_mean": _sum(values, f"running_mean{suffix}"),
        "requests": _sum(values, f"requests{suffix}"),
        "arrived": _sum(values, f"arrived{suffix}") if counted else None,
        "prompt_tokens_mean": _ratio(values, f"prompt_tokens_sum{suffix}", f"prompt_tokens_count{suffix}"),
        "answer_tokens_mean": _ratio(values, f"answer_tokens_sum{suffix}", f"answer_tokens_count{suffix}"),
    }
    if subject.objectives.ttft:
        results["ttft_attainment"] = _ratio(values, f"ttft_good{suffix}", f"requests{suffix}")
    if subject.objectives.tpot:
        results["tpot_attainment"] = _ratio(values, f"tpot_good{suffix}", f"tpot_count{suffix}")
        results["itl_attainment"] = _ratio(values, f"itl_good{suffix}", f"itl_count{suffix}")
    return {f"{field}{suffix}": value for field, value in results.items()}


def _sum(values: _Values, field: str) -> float | None:
    return sum(values[field]) if field in values else None


def _ratio(values: _Values, part: str, whole: str) -> float | None:
    """Return a share or a mean; None, never 0/0, without observations."""
    total, counted = _sum(values, part), _sum(values, whole)
    return total / counted if total is not None and counted is not None and counted > 0 else None


def _number(text: str) -> float:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError("a sample value is a short string")
    return float(text)

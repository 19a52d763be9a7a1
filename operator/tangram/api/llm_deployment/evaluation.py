"""Evaluations on the wire: the tolerance of a spec, the report of `tangram-engine evaluate`, and its place in
the status.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt, StrictStr, StringConstraints, ValidationError
from pydantic.alias_generators import to_camel

from tangram.api.common.base import APIModel
from tangram.api.common.values import Tolerance
from tangram.fleet import EvaluationFailure, EvaluationKey, EvaluationReport, PrecisionTolerance

_MESSAGE_LIMIT = 500
_LARGEST = 1e9  # a broken format may have any perplexity: beyond, the number means no more
_DIGITS = 6  # decimals kept: a report judges alike before and after it is recorded
_DEFAULT = PrecisionTolerance()
# Numbers of a report, on the wire, in the status and in the planner's type alike.
_FIGURES = (
    *("perplexity", "quantised_perplexity", "perplexity_increase"),
    *("top1_agreement", "kl_mean", "kl_p99"),
)

Format = Literal["fp8", "int4"]
_Name = Annotated[StrictStr, StringConstraints(min_length=1, max_length=128)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Positive = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Number = Annotated[str, StringConstraints(max_length=24, pattern=r"^-?[0-9]+(\.[0-9]+)?$")]


class PrecisionToleranceSpec(APIModel):
    """How far a quantised precision may be from the checkpoint's own."""

    perplexity_increase: Tolerance = Field(
        default=_DEFAULT.perplexity_increase,
        description="Most by which the perplexity may be higher, as a share of that of the checkpoint's own "
        'precision: a decimal in quotes from 0 to 1. "0.02": 2 percent.',
        json_schema_extra={"default": "0.02"},
    )
    top1_agreement: Tolerance = Field(
        default=_DEFAULT.top1_agreement,
        description="Smallest share of positions at which both precisions rank the same token first: a "
        "decimal in quotes from 0 to 1.",
        json_schema_extra={"default": "0.95"},
    )

    def to_noun(self) -> PrecisionTolerance:
        """Return the same bounds as the planner's type."""
        return PrecisionTolerance(self.perplexity_increase, self.top1_agreement)


class EvaluationStatus(APIModel):
    """A quantised precision of the checkpoint, compared with the checkpoint's own."""

    precision: Format = Field(description="The quantised precision.")
    sku: _Name = Field(description="GPU model on which it was measured.")
    profile: _Name = Field(description="MIG profile, or gpu for a whole GPU.")
    digest: _Name = Field(description="Digest of the checkpoint: a report about another one does not count.")
    engine_image: Annotated[str, StringConstraints(max_length=512)] = Field(
        description="Engine image that measured it."
    )
    tokens: Annotated[StrictInt, Field(ge=1)] = Field(description="Number of tokens that were scored.")
    perplexity: _Number = Field(description="Perplexity of the checkpoint's own precision.")
    quantised_perplexity: _Number = Field(description="Perplexity of the quantised precision.")
    perplexity_increase: _Number = Field(
        description="By how much the latter is higher, as a share of the former."
    )
    top1_agreement: _Number = Field(
        description="Share of positions at which both precisions rank the same token first."
    )
    kl_mean: _Number = Field(
        description="Mean Kullback-Leibler divergence per token in nats, over the whole vocabulary."
    )
    kl_p99: _Number = Field(description="99th percentile of it.")


class _Measured(APIModel):
    """The report of the engine. Fields that no decision needs are ignored."""

    digest: _Name
    format: Format
    tokens: Annotated[StrictInt, Field(ge=1, le=2**31 - 1)]
    perplexity: _Positive
    quantised_perplexity: _Positive
    perplexity_increase: Annotated[float, Field(allow_inf_nan=False)]
    top1_agreement: _Share
    kl_mean: _Positive
    kl_p99: _Positive


class _EvaluationError(APIModel):
    reason: Annotated[StrictStr, StringConstraints(pattern=r"^[A-Za-z]{1,64}$")] = "EvaluationFailed"
    message: StrictStr = ""


class _EvaluationDocument(APIModel):
    schema_: Literal[1] = Field(alias="schema")
    evaluation: _Measured | None = None
    error: _EvaluationError | None = None


def parse_evaluation(
    text: str, key: EvaluationKey, engine_image: str, profile: str, at: float
) -> EvaluationReport | EvaluationFailure:
    """Read the report of an evaluate Job about `key` that ended at `at` (seconds since the epoch).

    Anything else becomes an `EvaluationFailure`, also a report about another format or another checkpoint.
    """
    try:
        document = json.loads(text)
        json.dumps(document, ensure_ascii=False).encode()  # half of a surrogate pair cannot be stored
        report = _EvaluationDocument.model_validate(document)
    except (ValueError, ValidationError, RecursionError):
        excerpt = " ".join(text.split())[:200] or "nothing"
        return EvaluationFailure("EvaluationFailed", f"the evaluate Job left no report, but: {excerpt}", at)
    figures = report.evaluation
    if figures is None:
        error = report.error or _EvaluationError(message="its report holds neither figures nor an error")
        return EvaluationFailure(error.reason, error.message[:_MESSAGE_LIMIT], at)
    if figures.digest != key.digest:
        return EvaluationFailure(
            "CheckpointChanged",
            "the files of the checkpoint have changed since it was inspected: write the new revision to a"
            " directory of its own and name that in model.uri",
            at,
        )
    if figures.format != key.precision:
        return EvaluationFailure("EvaluationFailed", f"the report is about {figures.format}", at)
    return EvaluationReport(
        tokens=figures.tokens,
        **{name: _rounded(getattr(figures, name)) for name in _FIGURES},
        engine_image=engine_image,
        profile=profile,
    )


def evaluation_block(key: EvaluationKey, report: EvaluationReport) -> dict[str, Any]:
    """Return a report as the status holds it."""
    return {
        "precision": key.precision,
        "sku": key.sku,
        "profile": report.profile,
        "digest": key.digest,
        "engineImage": report.engine_image,
        "tokens": report.tokens,
        **{to_camel(name): _text(getattr(report, name)) for name in _FIGURES},
    }


def evaluations_from_status(obj: Mapping[str, Any]) -> tuple[tuple[EvaluationKey, EvaluationReport], ...]:
    """Return the reports recorded in the status of an LLMDeployment; unreadable ones are left out, and
    measured again.
    """
    status = obj.get("status")
    model = status.get("model") if isinstance(status, Mapping) else None
    uri, blocks = "", None
    if isinstance(model, Mapping):
        uri, blocks = str(model.get("uri") or ""), model.get("evaluations")
    reports = []
    for block in blocks if isinstance(blocks, list) and uri else ():
        try:
            entry = EvaluationStatus.model_validate(block)
            figures = {name: _rounded(float(getattr(entry, name))) for name in _FIGURES}
        except (ValidationError, ValueError):
            continue
        key = EvaluationKey(obj["metadata"]["namespace"], uri, entry.digest, entry.sku, entry.precision)
        report = EvaluationReport(
            tokens=entry.tokens, engine_image=entry.engine_image, profile=entry.profile, **figures
        )
        reports.append((key, report))
    return tuple(reports)


def _rounded(number: float) -> float:
    return round(min(number, _LARGEST), _DIGITS)


def _text(number: float) -> str:
    """Never in exponent form."""
    return f"{number:.{_DIGITS}f}".rstrip("0").rstrip(".") or "0"

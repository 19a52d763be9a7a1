"""Accuracy of quantised formats: tolerances, reports, and the Jobs that make them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrecisionTolerance:
    """How far a quantised format may be from the checkpoint's own for `precision: Any` to use it."""

    perplexity_increase: float = 0.02  # share of the checkpoint's own perplexity
    top1_agreement: float = 0.95  # share of positions at which both rank the same token first


@dataclass(frozen=True, slots=True, order=True)
class EvaluationKey:
    """The subject of a report. A checkpoint of other content, or another GPU model, needs its own report.

    As with facts, reports never cross namespaces.
    """

    namespace: str
    uri: str
    digest: str  # of config.json and the safetensors headers
    sku: str  # GPU models differ in kernels and in the types that they multiply in
    precision: str  # fp8 | int4


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """What `tangram-engine evaluate` measured: a quantised format against the checkpoint's own, per token."""

    tokens: int  # scored
    perplexity: float  # of the checkpoint's own format
    quantised_perplexity: float
    perplexity_increase: float  # share of `perplexity`; below 0: it fell
    top1_agreement: float
    kl_mean: float  # nats, KL(own || quantised) over the whole vocabulary
    kl_p99: float
    engine_image: str = ""
    profile: str = ""  # of the GPU or slice that it was made on

    def misses(self, tolerance: PrecisionTolerance) -> str:
        """Return which tolerance is missed and by how much, the empty string where none is."""
        missed = []
        if self.perplexity_increase > tolerance.perplexity_increase:
            limit = f"{tolerance.perplexity_increase * 100:.3g} %"
            missed.append(f"perplexity {_increase(self)} is above the tolerance {limit}")
        if self.top1_agreement < tolerance.top1_agreement:
            limit = f"{tolerance.top1_agreement * 100:.4g} %"
            missed.append(f"top-1 agreement {self.top1_agreement * 100:.1f} % is below the tolerance {limit}")
        return " and ".join(missed)

    def __str__(self) -> str:
        """Return the figures as text."""
        return f"perplexity {_increase(self)}, top-1 agreement {self.top1_agreement * 100:.1f} %"


@dataclass(frozen=True, slots=True)
class EvaluationFailure:
    """Why an evaluate Job ended without a report."""

    reason: str  # InvalidCheckpoint | OutOfMemory | EvaluationFailed | ...
    message: str
    at: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Evaluation:
    """An evaluate Job as observed. `result` is None while it runs."""

    key: EvaluationKey
    profile: str  # of the GPU or slice that it asks for
    job_name: str
    job_uid: str
    started_at: float
    result: EvaluationReport | EvaluationFailure | None = None
    message: str = ""  # while it runs: what it waits for, as the cluster reports it


def _increase(report: EvaluationReport) -> str:
    return f"{report.perplexity_increase * 100:+.2g} %"

"""Checkpoint facts on the wire: the report of `tangram-engine inspect`, and their place in the status."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictBool, StrictInt, StrictStr, ValidationError
from pydantic.alias_generators import to_camel

from tangram.api.common.base import APIModel, optional
from tangram.api.common.other_checkpoint import facts_from_config
from tangram.api.llm_deployment.source import REVISION_PATTERN
from tangram.catalog import InputError
from tangram.catalog.configs.compressed import architecture_of
from tangram.fleet import CheckpointFacts, FactsKey, InspectionFailure, PinnedRevision

_MESSAGE_LIMIT = 1000
MAX_CONFIG = 4096  # characters
_OF_SOURCES = ("AccessDenied", "SourceUnreachable", "SourceChanged", "NoSpace")
REASONS = ("NotFound", "InvalidCheckpoint", "UnknownArchitecture", *_OF_SOURCES)

Count = Annotated[StrictInt, Field(ge=1, le=2**31 - 1)]
Bytes = Annotated[StrictInt, Field(ge=1, le=2**53)]


def _readable(config: str) -> str:
    """Return a compressed config.json, or the empty string. Raises ValueError for one that is not read."""
    if config:
        try:
            architecture_of(config)
        except InputError as error:
            raise ValueError(str(error)) from None
    return config


class Pin(APIModel):
    """The revision of a repository that was inspected, and that pods fetch."""

    revision: StrictStr = Field(
        min_length=1,
        max_length=128,
        pattern=REVISION_PATTERN,
        description="Names the same bytes for ever: a commit, or a hash of ETags.",
    )
    size: Annotated[StrictInt, Field(ge=0, le=2**53)] = Field(description="Bytes that a pod fetches.")


class Facts(APIModel):
    """What `tangram-engine inspect` found in the checkpoint."""

    architecture: StrictStr = Field(
        min_length=1, max_length=128, description="Architecture as config.json names it."
    )
    digest: StrictStr = Field(
        min_length=1, max_length=128, description="Digest of config.json and the safetensors headers."
    )
    dtype: Literal["bf16", "fp16", "fp32"] = Field(description="Data type the weights are stored in.")
    layers: Count = Field(description="Number of decoder layers.")
    hidden_size: Count = Field(description="Width of the residual stream.")
    heads: Count = Field(description="Number of query heads.")
    kv_heads: Count = Field(description="Number of key/value heads.")
    head_dim: Count = Field(description="Width of one head.")
    vocab_size: Count = Field(description="Number of tokens in the vocabulary.")
    max_position_embeddings: Count = Field(
        description="Longest context in tokens the checkpoint was made for."
    )
    parameters: Bytes = Field(description="Number of parameters.")
    weight_bytes: Bytes = Field(description="Bytes of all stored tensors.")
    embedding_bytes: Annotated[StrictInt, Field(ge=0, le=2**53)] = Field(
        description="Bytes of the input embedding: stored, but not read whole in a step unless tied."
    )
    tied_embeddings: StrictBool = Field(description="Whether the output projection is the input embedding.")
    attention_bias: StrictBool = Field(
        description="Whether the projections of queries, keys and values have biases."
    )
    qk_norm: StrictBool = Field(description="Whether queries and keys are normalised by head.")
    pin: Pin | None = optional("The revision that was inspected, of a checkpoint that pods fetch.")
    refused_by_engine: Annotated[StrictStr, Field(max_length=_MESSAGE_LIMIT)] | None = optional(
        "Why the bundled engine does not serve the checkpoint: then another runtime may. Absent: it does."
    )
    config: Annotated[StrictStr, Field(max_length=MAX_CONFIG), AfterValidator(_readable)] | None = optional(
        "config.json of a checkpoint that the bundled engine does not serve, compressed (zlib, base64)."
    )

    def to_noun(self) -> CheckpointFacts:
        """Return the same facts as the planner's type."""
        pin = None if self.pin is None else PinnedRevision(self.pin.revision, self.pin.size)
        return CheckpointFacts(**self.model_dump(exclude={"pin"}, exclude_none=True), pin=pin)


class _Failure(APIModel):
    reason: StrictStr
    message: StrictStr = ""


class _OtherCheckpoint(APIModel):
    """A checkpoint that the bundled engine refuses, for runtimes that may serve it."""

    digest: Annotated[StrictStr, Field(min_length=1, max_length=128)]
    weight_bytes: Bytes
    config: Annotated[StrictStr, Field(min_length=1, max_length=MAX_CONFIG)]


class _Report(APIModel):
    schema_: Literal[1] = Field(alias="schema")
    facts: Facts | None = None
    other: _OtherCheckpoint | None = None
    error: _Failure | None = None


def parse_pin(text: str) -> PinnedRevision | None:
    """Read the report of a fetch; None: there is none, or none of a fetch that succeeded."""
    try:
        pin = Pin.model_validate(json.loads(text)["source"])
    except (ValueError, TypeError, KeyError, RecursionError):  # ValidationError is a ValueError
        return None
    return PinnedRevision(pin.revision, pin.size)


def parse_report(text: str, at: float) -> CheckpointFacts | InspectionFailure:
    """Read the report of an inspect Job that ended at `at` (seconds since the epoch).

    Anything that is not a report (an evicted pod, a crash, another schema) becomes `InspectionFailed`, with
    the output; it is retried like the rest.
    """
    try:
        document = json.loads(text)
        json.dumps(document, ensure_ascii=False).encode()  # half of a surrogate pair cannot be stored
        report = _Report.model_validate(document)
    except (ValueError, ValidationError, RecursionError):
        excerpt = " ".join(text.split())[:200]
        output = f"its output: {excerpt}" if excerpt else "it had no output"
        return InspectionFailure("InspectionFailed", f"the inspect Job ended without a report; {output}", at)
    if report.facts is not None:
        return report.facts.to_noun()
    if report.other is not None and report.error is not None:
        return _facts_for_other_runtimes(report.other, report.error.message[:_MESSAGE_LIMIT], at)
    if report.error is None:
        return InspectionFailure(
            "InspectionFailed", "the inspect Job's report holds neither facts nor an error", at
        )
    reason = report.error.reason if report.error.reason in REASONS else "InspectionFailed"
    return InspectionFailure(
        reason, report.error.message[:_MESSAGE_LIMIT] or "the inspect Job gave no reason", at
    )


def _facts_for_other_runtimes(
    other: _OtherCheckpoint, why: str, at: float
) -> CheckpointFacts | InspectionFailure:
    """Return the facts of a checkpoint that the bundled engine refuses, within the bounds of the status."""
    try:
        facts = facts_from_config(
            other.config, other.digest, other.weight_bytes, why or "it is not supported"
        )
        return validated_facts(asdict(facts), "config.json")
    except InputError as error:
        message = f"{why}; other runtimes cannot be planned either: {error.field} {error.problem}"
        return InspectionFailure("UnknownArchitecture", message[:_MESSAGE_LIMIT], at)


def pin_from_status(obj: Mapping[str, Any]) -> tuple[tuple[str, str], str] | None:
    """Return namespace, `model.uri` and the revision that the status of an LLMDeployment has for them."""
    status = obj.get("status")
    model = status.get("model") if isinstance(status, Mapping) else None
    if not isinstance(model, Mapping):
        return None
    uri, revision = model.get("uri"), model.get("revision")
    if not (isinstance(uri, str) and isinstance(revision, str) and re.fullmatch(REVISION_PATTERN, revision)):
        return None
    return (obj["metadata"]["namespace"], uri), revision


def facts_from_status(obj: Mapping[str, Any]) -> tuple[FactsKey, CheckpointFacts] | None:
    """Return the facts recorded in the status of an LLMDeployment, or None if none can be read.

    A status is ours, but an older or newer version may have written it: unreadable facts are inspected again.
    """
    model = (obj.get("status") or {}).get("model") or {}
    uri, engine_image = model.get("uri"), model.get("engineImage")
    if not (isinstance(uri, str) and isinstance(engine_image, str) and uri and engine_image):
        return None
    try:
        facts = Facts.model_validate(model.get("facts")).to_noun()
    except ValidationError:
        return None
    return FactsKey(obj["metadata"]["namespace"], uri, engine_image), facts


def validated_facts(values: object, where: str) -> CheckpointFacts:
    """Return the facts of a checkpoint. Raises `InputError` with the path of the first wrong field."""
    try:
        return Facts.model_validate(values).to_noun()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join((where, *(to_camel(str(part)) for part in first["loc"])))
        raise InputError(path, first["msg"]) from error

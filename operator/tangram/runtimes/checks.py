"""Whether the words and variables of a runtime, and what an LLMDeployment adds, may be rendered.

Each check returns the path of the field and a sentence. Nothing is refused that a version of the table has,
unless it is forbidden or missing; of other versions, flags that no known version has are warned of.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tangram.catalog.reading.field_path import FieldPath
from tangram.runtimes.flag_names import flag_name
from tangram.runtimes.flag_tables import FlagTable, flag_table, known_flags, known_versions
from tangram.runtimes.forbidden import forbidden_flag, forbidden_value, forbidden_variable
from tangram.runtimes.holes import filled_length, unknown_hole
from tangram.runtimes.runtime import EngineKind, EngineRuntime, MetricsDialect, RuntimeOption, RuntimeRequest

# Characters of words and variables of one pod, with filled holes: mirrors keep a Deployment of 64 KiB whole,
# and Linux a variable of 128 KiB.
MOST_CHARACTERS, MOST_ADDED_CHARACTERS = 40 << 10, 8 << 10
_ARGUMENTS, _COMMAND = ("spec", "arguments"), ("spec", "command")
_VARIABLES = ("spec", "variables")


class RuntimeProblem(NamedTuple):
    """A field, and what is wrong with it."""

    field: FieldPath
    text: str  # without the path


class RequiredFlag(NamedTuple):
    """A flag that must be there, with the value that it must have, and what happens without."""

    name: str
    value: str  # empty: the flag has none, or any
    reason: str
    is_optional: bool = False  # it may be missing, and has no other value


# vllm-project/vllm#55381: NVML refuses the memory of a MIG slice, and the defaults fall to 2,048 tokens and
# 256 requests. SGLang 0.5.23, server_args.py: host 127.0.0.1; enable_metrics False; without --admin-api-key
# its routes of administration are open (utils/auth.py, ADMIN_OPTIONAL).
_SAFETENSORS = RequiredFlag("--load-format", "safetensors", "other formats may run code of the checkpoint")
_STAGES = RequiredFlag(
    "--pipeline-parallel-size",
    "{pipelineParallel}",
    "the pod has as many GPUs as the plan says",
    is_optional=True,
)
_SERVED_NAME = RequiredFlag("--served-model-name", "{servedName}", "metrics are found by it")
_REQUIRED = {
    EngineKind.VLLM: (
        RequiredFlag(
            "--max-num-batched-tokens", "{maxBatchedTokens}", "vLLM takes 2048 on a MIG slice otherwise"
        ),
        RequiredFlag("--max-num-seqs", "{maxRunningRequests}", "vLLM takes 256 on a MIG slice otherwise"),
        RequiredFlag(
            "--gpu-memory-utilization", "{memoryShare}", "the plan sizes the KV cache by this share"
        ),
        RequiredFlag("--max-model-len", "{maxModelLen}", "the plan holds room for one such request"),
        RequiredFlag(
            "--tensor-parallel-size", "{tensorParallel}", "the pod has as many GPUs as the plan says"
        ),
        _STAGES,
        RequiredFlag("--shutdown-timeout", "{drainSeconds}", "vLLM cuts all streams at SIGTERM otherwise"),
        _SERVED_NAME,
        _SAFETENSORS,
    ),
    EngineKind.SGLANG: (
        RequiredFlag("--host", "", "SGLang listens on 127.0.0.1 otherwise, where probes do not reach it"),
        RequiredFlag("--enable-metrics", "", "SGLang shows no metrics otherwise, and scaling is blind"),
        RequiredFlag("--admin-api-key", "{podUID}", "every client may unload the weights otherwise"),
        RequiredFlag(
            "--max-running-requests", "{maxRunningRequests}", "the plan counts on so many at a time"
        ),
        RequiredFlag("--chunked-prefill-size", "{maxBatchedTokens}", "the plan counts on steps so long"),
        RequiredFlag(
            "--mem-fraction-static", "{staticMemoryShare}", "the plan sizes the KV cache by this share"
        ),
        RequiredFlag("--context-length", "{maxModelLen}", "the plan holds room for one such request"),
        RequiredFlag("--tp-size", "{tensorParallel}", "the pod has as many GPUs as the plan says"),
        _STAGES,
        _SERVED_NAME,
        _SAFETENSORS,
    ),
}


def runtime_problems(runtime: EngineRuntime) -> Iterator[RuntimeProblem]:
    """Yield what is wrong with the spec of a runtime, the first field first."""
    variables = [text for pair in runtime.variables for text in pair]
    length = sum(map(filled_length, (*runtime.command, *runtime.arguments, *variables)))
    if length > MOST_CHARACTERS:
        text = f"has {length} characters with command, variables and filled holes"
        yield RuntimeProblem(_ARGUMENTS, f"{text}: shorten it to {MOST_CHARACTERS}")
    for field, words in ((_COMMAND, runtime.command), (_ARGUMENTS, runtime.arguments)):
        for index, word in enumerate(words):
            if text := unknown_hole(word) or _forbidden(word, runtime):
                yield RuntimeProblem((*field, index), text)
    for index, (name, value) in enumerate(runtime.variables):
        text = forbidden_variable(name) or unknown_hole(value) or _forbidden(value, runtime)
        if text:
            yield RuntimeProblem((*_VARIABLES, index), text)
    yield from _allowed_problems(runtime)
    yield from _missing_flags(runtime)
    table = _table(runtime)
    if table is not None:
        yield from _unknown_flags(runtime, table)


def runtime_warnings(runtime: EngineRuntime) -> tuple[str, ...]:
    """Return what may be wrong with flags of a version that the table does not have."""
    engine = _flags_engine(runtime)
    if engine is None or _table(runtime) is not None:
        return ()
    versions = ", ".join(known_versions(engine))
    known = known_flags(engine)
    names = (flag_name(word) for word in (*runtime.arguments, *runtime.allowed_arguments))
    unknown = sorted({name for name in names if name and _plain(name) not in known})
    checked = f"flags are checked for {engine} {versions}, not for the version {runtime.version}"
    missing = f"; none of these has {', '.join(unknown)}" if unknown else ""
    return (f"{checked}{missing}",)


def request_problems(request: RuntimeRequest, runtime: EngineRuntime) -> Iterator[RuntimeProblem]:
    """Yield what is wrong with arguments and variables that an LLMDeployment adds to a runtime."""
    added = (*request.arguments, *request.variables)
    length = sum(len(option.name) + len(option.value or "") for option in added)
    if length > MOST_ADDED_CHARACTERS:
        text = f"has {length} characters with the variables: shorten it to {MOST_ADDED_CHARACTERS}"
        yield RuntimeProblem(("spec", "runtime", "arguments"), text)
    rendered = {_spelling(runtime, word) for word in runtime.arguments}
    fixed = {name for name, _ in runtime.variables}
    for kind, options, allowed in (
        ("arguments", request.arguments, runtime.allowed_arguments),
        ("variables", request.variables, runtime.allowed_variables),
    ):
        for index, option in enumerate(options):
            if text := _option_problem(option, kind, runtime, allowed, rendered | fixed):
                yield RuntimeProblem(("spec", "runtime", kind, index), text)


def _option_problem(
    option: RuntimeOption, kind: str, runtime: EngineRuntime, allowed: tuple[str, ...], rendered: set[str]
) -> str:
    is_flag = kind == "arguments"
    text = _forbidden(option.name, runtime) if is_flag else forbidden_variable(option.name)
    text = text or (f"{option.name} {bad}" if (bad := forbidden_value(option.value or "")) else "")
    if text:
        return text
    if (_spelling(runtime, option.name) if is_flag else option.name) in rendered:
        return f"EngineRuntime {runtime.name} sets {option.name} already: leave it out"
    if option.name not in allowed:
        listed = ", ".join(allowed) if allowed else "none"
        return f"EngineRuntime {runtime.name} does not list {option.name} (it lists {listed})"
    return ""


def _forbidden(word: str, runtime: EngineRuntime) -> str:
    flag = forbidden_flag(word, known_flags(_flags_engine(runtime) or ""))
    if flag:
        return f"{flag_name(word)} is never admissible: {_reason(flag, word)}"
    bad = forbidden_value(word)
    return f"{word[:60]!r} {bad}" if bad else ""


def _reason(flag: str, word: str) -> str:
    name = flag_name(word)
    stands = f"argparse takes it for {flag}, which" if name != flag and not name.startswith(flag) else "it"
    return f"{stands} runs code, reads options or opens routes that nobody reviewed"


def _allowed_problems(runtime: EngineRuntime) -> Iterator[RuntimeProblem]:
    rendered = {_spelling(runtime, word) for word in runtime.arguments}
    planned = {
        _spelling(runtime, flag.name): flag for flag in _REQUIRED.get(runtime.kind, ()) if flag.is_optional
    }
    for index, name in enumerate(runtime.allowed_arguments):
        text = _forbidden(name, runtime)
        if not text and flag_name(name) != name:
            text = f"{name!r} is no name of a flag"
        if not text and _spelling(runtime, name) in rendered:
            text = f"spec.arguments sets {name} already"
        if not text and (flag := planned.get(_spelling(runtime, name))):
            text = f"only spec.arguments may set {name}, to {flag.value}: {flag.reason}"
        if text:
            yield RuntimeProblem(("spec", "allowedArguments", index), text)
    for index, name in enumerate(runtime.allowed_variables):
        text = forbidden_variable(name)
        if not text and name in dict(runtime.variables):
            text = f"spec.variables sets {name} already"
        if text:
            yield RuntimeProblem(("spec", "allowedVariables", index), text)


def _missing_flags(runtime: EngineRuntime) -> Iterator[RuntimeProblem]:
    words = runtime.arguments
    names = [_spelling(runtime, word) for word in words]
    for name, value, reason, is_optional in _REQUIRED.get(runtime.kind, ()):
        spelling = _spelling(runtime, name)
        positions = [index for index, present in enumerate(names) if present == spelling]
        if not positions and not is_optional:
            yield RuntimeProblem(_ARGUMENTS, f"must set {name}{value and f' {value}'}: {reason}")
        elif len(positions) > 1:
            yield RuntimeProblem((*_ARGUMENTS, positions[1]), f"sets {name} a second time")
        elif (
            positions
            and value
            and value
            not in (
                words[positions[0]].partition("=")[2],
                *words[positions[0] + 1 : positions[0] + 2],
            )
        ):
            yield RuntimeProblem((*_ARGUMENTS, positions[0]), f"{name} must have the value {value}: {reason}")


def _unknown_flags(runtime: EngineRuntime, table: FlagTable) -> Iterator[RuntimeProblem]:
    for field, words in (("arguments", runtime.arguments), ("allowedArguments", runtime.allowed_arguments)):
        for index, word in enumerate(words):
            if flag_name(word) and (text := table.problem(word)):
                yield RuntimeProblem(("spec", field, index), text)


def _spelling(runtime: EngineRuntime, word: str) -> str:
    """Return the flag of a word in its longest spelling, of the table's newest version where none fits."""
    name, engine = flag_name(word), _flags_engine(runtime)
    if not name or engine is None:
        return name
    table = _table(runtime) or flag_table(engine, known_versions(engine)[0])
    return (table.spelling(name) if table else "") or name


def _table(runtime: EngineRuntime) -> FlagTable | None:
    # The version of a NIM is its own, not that of the engine inside.
    return None if runtime.kind is EngineKind.NIM else flag_table(runtime.kind, runtime.version)


def _flags_engine(runtime: EngineRuntime) -> str | None:
    if runtime.kind is EngineKind.NIM:
        return EngineKind.SGLANG if runtime.metrics.dialect is MetricsDialect.SGLANG else EngineKind.VLLM
    return None if runtime.kind is EngineKind.TANGRAM else runtime.kind


def _plain(name: str) -> str:
    return f"--{name[5:]}" if name.startswith("--no-") else name


def missing_options(always: Iterable[str], runtime: EngineRuntime) -> Iterator[RuntimeProblem]:
    """Yield the flags of `spec.alwaysSet` that the arguments do not set."""
    rendered = {_spelling(runtime, word) for word in runtime.arguments}
    for index, name in enumerate(always):
        if _spelling(runtime, name) not in rendered:
            yield RuntimeProblem(("spec", "alwaysSet", index), f"spec.arguments does not set {name}")

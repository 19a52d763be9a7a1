"""What a client asked for, as the engine sees it."""

import math
from dataclasses import dataclass

from tangram_engine.cache import ROOT
from tangram_engine.sample.params import MAX_LOGPROBS, SamplingParams


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to be continued once."""

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    arrival: float  # time.monotonic() in the API process; for metrics, never for decisions
    cache_root: bytes = ROOT  # only requests with the same root share blocks of the prefix cache


def defect(request: Request, vocab_size: int, max_model_len: int) -> str | None:
    """Why the request cannot be run, or None.

    The server answers such requests with a 400; this is the engine's own fence, because one token id
    outside the vocabulary would otherwise end the step of all requests.
    """
    prompt = request.prompt
    if not 0 < len(prompt) < max_model_len:
        return f"the prompt has {len(prompt)} tokens; 1 to {max_model_len - 1} are possible"
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        return f"the prompt holds a token id outside 0..{vocab_size - 1}"
    named = [*request.params.allowed_token_ids, *(token for token, _ in request.params.logit_bias)]
    named += [token for word in request.params.bad_words for token in word]
    if named and (min(named) < 0 or max(named) >= vocab_size):
        return f"a sampling parameter names a token id outside 0..{vocab_size - 1}"
    return _sampling_defect(request.params)


def _sampling_defect(params: SamplingParams) -> str | None:
    if params.max_tokens < 1:
        return "max_tokens is less than 1"
    for name, count in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
        if count is not None and not 0 <= count <= MAX_LOGPROBS:
            return f"{name} is not between 0 and {MAX_LOGPROBS}"
    not_negative = (params.temperature, params.top_p, params.min_p, params.repetition_penalty)
    numbers = (*not_negative, params.presence_penalty, params.frequency_penalty)
    if not all(map(math.isfinite, numbers)) or min(not_negative) < 0 or params.repetition_penalty == 0:
        return "a sampling parameter is not a finite number in its range"
    return None

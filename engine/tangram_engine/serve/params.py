"""What clients may send, as pydantic models: OpenAI's fields, some of vLLM's, refusals for the rest.

Fields nobody knows are ignored, as OpenAI's servers do. Fields that are known and not implemented are refused
when they ask for something: silently answering otherwise than asked would be worse.
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from tangram_engine.sample.params import MAX_LOGPROBS, SamplingParams

MAX_N = 16
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1000
MAX_PROMPTS = 64
MAX_SEQUENCES = 64  # prompts * n of one HTTP request
MAX_MESSAGES = 4096
MAX_TOKEN_IDS = 1 << 20
MAX_TOKENIZED = 1 << 18  # tokens of one text that /tokenize counts
MAX_CACHE_SALT = 1024  # characters; 43 of base64 are 256 bits
_INT32 = (1 << 31) - 1
_INT64 = (1 << 63) - 1
_NEUTRAL: tuple[Any, ...] = (None, False, [], {})

TokenId = Annotated[int, Field(ge=0, le=_INT32)]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class StreamOptions(BaseModel):
    """OpenAI's stream_options."""

    model_config = ConfigDict(strict=True, extra="ignore")
    include_usage: bool = False


class Sampling(BaseModel):
    """What completions and chat completions share."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
    unsupported: ClassVar[frozenset[str]] = frozenset(
        {
            "logit_bias", "prompt_logprobs", "min_tokens", "use_beam_search", "guided_json", "guided_regex",
            "guided_choice", "guided_grammar", "structured_outputs", "truncate_prompt_tokens", "bad_words",
            "allowed_token_ids", "response_format",
        }
    )  # fmt: skip

    model: str
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    best_of: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: list[Stop] | None = Field(default=None, max_length=MAX_STOPS)
    max_tokens: Annotated[int, Field(ge=1, le=_INT32)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=_INT32)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-_INT64 - 1, le=_INT64)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    # The lower bound keeps logits finite: dividing them by next to nothing would be an error of the engine.
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[TokenId] | None = Field(default=None, max_length=128)
    skip_special_tokens: bool = True
    # Requests share cached prefixes with those of the same salt alone: vLLM's field, the tenant's isolation.
    cache_salt: Annotated[str, StringConstraints(min_length=1, max_length=MAX_CACHE_SALT)] | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _refuse_what_is_not_implemented(self) -> Self:
        extra = self.model_extra or {}
        for name in sorted(self.unsupported & extra.keys()):
            value = extra[name]
            if value in _NEUTRAL or (name == "response_format" and value == {"type": "text"}):
                continue
            if isinstance(value, int) and value == 0:
                continue
            raise Unsupported(name)
        if self.best_of is not None and self.best_of != self.choices:
            raise Unsupported("best_of", "other than n")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed when stream is true")
        return self

    @property
    def choices(self) -> int:
        """How many answers per prompt."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that has the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def wanted_tokens(self) -> int | None:
        """The client's limit on the answer's length."""
        return self.max_tokens

    def wanted_logprobs(self) -> int | None:
        """How many alternatives per token, 0 for the chosen one alone, None for no logprobs."""
        raise NotImplementedError

    def sampling(self, max_tokens: int, index: int) -> SamplingParams:
        """Engine parameters of the answer with this index; each gets its own seed from the given one."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(self.top_k or 0, 0),
            min_p=self.min_p or 0.0,
            seed=None if self.seed is None else (self.seed + index) & _INT64,
            logprobs=self.wanted_logprobs(),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
        )


class Unsupported(ValueError):
    """A field whose meaning is known and not implemented."""

    def __init__(self, field: str, detail: str = "") -> None:
        super().__init__(f"{field} {detail} is not supported by this server".replace("  ", " "))
        self.field = field


class CompletionRequest(Sampling):
    """POST /v1/completions."""

    unsupported = Sampling.unsupported | {"suffix", "echo"}

    prompt: list[str] | list[list[TokenId]]
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        """A string, a list of strings, a list of ids or a list of such lists; always a list afterwards."""
        prompts = [value] if isinstance(value, str) else value
        if isinstance(prompts, list) and prompts and _is_id(prompts[0]):
            prompts = [prompts]
        if not isinstance(prompts, list) or not prompts:
            raise ValueError(
                "must be a string, a list of strings, a list of token ids or a list of such lists"
            )
        if len(prompts) > MAX_PROMPTS:
            raise ValueError(f"at most {MAX_PROMPTS} prompts are accepted, not {len(prompts)}")
        if all(isinstance(prompt, str) for prompt in prompts):
            return prompts
        for prompt in prompts:
            if not isinstance(prompt, list) or not prompt:
                raise ValueError("every prompt must be a non-empty list of token ids, or every one a string")
            if len(prompt) > MAX_TOKEN_IDS:
                raise ValueError(f"at most {MAX_TOKEN_IDS} token ids are accepted")
            if not all(_is_id(item) and 0 <= item <= _INT32 for item in prompt):
                raise ValueError("token ids must be non-negative integers")
        return prompts

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if len(self.prompt) * self.choices > MAX_SEQUENCES:
            raise ValueError(f"prompts * n must be at most {MAX_SEQUENCES}")
        return self

    def wanted_logprobs(self) -> int | None:
        """See Sampling."""
        return self.logprobs


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class TextPart(BaseModel):
    """One part of a message's content; only text can be read here."""

    model_config = ConfigDict(strict=True, extra="ignore")
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(strict=True, extra="allow")
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(max_length=256)]

    @field_validator("content", mode="before")
    @classmethod
    def _text_only(cls, value: Any) -> Any:
        if not isinstance(value, str | list):
            # Only a ValueError becomes a validation error.
            raise ValueError("must be a string or a list of text parts")  # noqa: TRY004
        if isinstance(value, list) and not all(
            isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
            for part in value
        ):
            raise ValueError(
                'every part must be {"type": "text", "text": "..."}; images and audio are not supported'
            )
        return value

    @model_validator(mode="after")
    def _no_tools(self) -> Self:
        for name in ("tool_calls", "function_call"):
            if (self.model_extra or {}).get(name):
                raise Unsupported(name)
        return self

    def plain(self) -> dict[str, str]:
        """What a chat template sees: the text in one string, "developer" under its older name."""
        text = (
            self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        )
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatRequest(Sampling):
    """POST /v1/chat/completions."""

    unsupported = Sampling.unsupported | {
        "tools", "functions", "function_call", "audio", "chat_template", "continue_final_message", "echo",
    }  # fmt: skip

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: Annotated[int, Field(ge=1, le=_INT32)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    chat_template_kwargs: dict[str, bool | int | str | None] | None = Field(default=None, max_length=16)

    @model_validator(mode="after")
    def _logprobs_go_together(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        return self

    def wanted_tokens(self) -> int | None:
        """The newer of OpenAI's two names goes first."""
        return self.max_completion_tokens or self.max_tokens

    def wanted_logprobs(self) -> int | None:
        """See Sampling."""
        return (self.top_logprobs or 0) if self.logprobs else None


class TokenizeRequest(BaseModel):
    """POST /tokenize, vLLM's shape: a prompt, or messages to be rendered first."""

    model_config = ConfigDict(strict=True, extra="ignore")
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1, max_length=MAX_MESSAGES)
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("either prompt or messages must be given")
        return self


class DetokenizeRequest(BaseModel):
    """POST /detokenize."""

    model_config = ConfigDict(strict=True, extra="ignore")
    model: str | None = None
    tokens: list[TokenId] = Field(max_length=MAX_TOKEN_IDS)

"""What clients may send, as pydantic models: OpenAI's fields, some of vLLM's, refusals for the rest.

Fields that neither API has are ignored, as vLLM does. Those that are known and not implemented are sorted in
`fields`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from tangram_engine.sample.params import MAX_LOGPROBS, SamplingParams

from . import fields

if TYPE_CHECKING:
    from .defaults import SamplingDefaults

MAX_N = 16
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_PROMPTS = 64
MAX_SEQUENCES = 64  # prompts * n of one HTTP request
MAX_MESSAGES = 4096
MAX_TOKEN_IDS = 1 << 18  # as many as values of a body: see jsonio
MAX_TOKENIZED = 1 << 18  # tokens of one text that /tokenize counts
MAX_CACHE_SALT = 1024  # characters; 43 of base64 are 256 bits
_INT32 = (1 << 31) - 1
_INT64 = (1 << 63) - 1
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, for /v1/completions

T = TypeVar("T")
TokenId = Annotated[int, Field(ge=0, le=_INT32)]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARACTERS)]


TokenCount = Annotated[int, Field(ge=1, le=_INT32)]
Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
TopK = Annotated[int, Field(ge=-1, le=_INT32)]
MinP = Annotated[float, Field(ge=0, le=1)]
# The lower bound keeps logits finite: dividing them by next to nothing would be an error of the engine.
RepetitionPenalty = Annotated[float, Field(ge=0.01, le=10)]


class Refusing(BaseModel):
    """A part of a request, some of whose known fields are refused by name."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
    unsupported: ClassVar[Mapping[str, fields.Neutral]] = {}

    @model_validator(mode="after")
    def _refuse_what_is_not_implemented(self) -> Self:
        name = fields.first_refused(self.model_extra or {}, self.unsupported)
        if name is not None:
            raise Unsupported(name)
        return self


class StreamOptions(Refusing):
    """OpenAI's stream_options."""

    unsupported = fields.REFUSED_IN_STREAM_OPTIONS

    include_usage: bool = False


class Sampling(Refusing):
    """What completions and chat completions share."""

    unsupported = fields.REFUSED
    default_tokens: ClassVar[int | None] = None  # of an answer whose length is not asked for

    model: str
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    best_of: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: list[Stop] | None = Field(default=None, max_length=MAX_STOPS)
    max_tokens: TokenCount | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Annotated[int, Field(ge=-_INT64 - 1, le=_INT64)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: RepetitionPenalty | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[TokenId] | None = Field(default=None, max_length=128)
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    add_special_tokens: bool | None = None  # null: as is usual for the endpoint
    # Requests share cached prefixes with those of the same salt alone: vLLM's field, the tenant's isolation.
    cache_salt: Annotated[str, StringConstraints(min_length=1, max_length=MAX_CACHE_SALT)] | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
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

    def sampling(self, max_tokens: int, index: int, defaults: "SamplingDefaults") -> SamplingParams:
        """Engine parameters of the answer with this index; each gets its own seed from the given one."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=_first(self.temperature, defaults.temperature, 1.0),
            top_p=_first(self.top_p, defaults.top_p, 1.0),
            top_k=max(_first(self.top_k, defaults.top_k, 0), 0),
            min_p=_first(self.min_p, defaults.min_p, 0.0),
            seed=None if self.seed is None else (self.seed + index) & _INT64,
            logprobs=self.wanted_logprobs(),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=_first(self.repetition_penalty, defaults.repetition_penalty, 1.0),
        )


def _first(own: T | None, recommended: T | None, neutral: T) -> T:
    return next((value for value in (own, recommended) if value is not None), neutral)


class Unsupported(ValueError):
    """A field whose meaning is known and not implemented."""

    def __init__(self, field: str, detail: str = "") -> None:
        super().__init__(f"{field} {detail} is not supported by this server".replace("  ", " "))
        self.field = field


class CompletionRequest(Sampling):
    """POST /v1/completions."""

    unsupported = {**fields.REFUSED, **fields.REFUSED_IN_COMPLETIONS}
    default_tokens = DEFAULT_COMPLETION_TOKENS

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


class Message(Refusing):
    """One message of a conversation. Its name and reasoning are shown to the chat template."""

    unsupported = fields.REFUSED_IN_MESSAGES

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(max_length=256)]
    name: Annotated[str, StringConstraints(max_length=256)] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # vLLM's newer name of the same

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

    def plain(self) -> dict[str, str]:
        """What a chat template sees: the text in one string, "developer" under its older name."""
        text = (
            self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        )
        plain = {"role": "system" if self.role == "developer" else self.role, "content": text}
        optional = {"name": self.name, "reasoning_content": self.reasoning_content or self.reasoning}
        return plain | {key: value for key, value in optional.items() if value is not None}


def _of_64_bits(value: bool | int | str | None) -> bool | int | str | None:
    """Raises ValueError for an integer that the text process cannot be sent."""
    if isinstance(value, int) and not -_INT64 <= value <= _INT64:
        raise ValueError("must be an integer of at most 64 bits")
    return value


TemplateOption = Annotated[bool | int | str | None, AfterValidator(_of_64_bits)]
TemplateOptions = Annotated[dict[str, TemplateOption], Field(max_length=16)]


class ChatRequest(Sampling):
    """POST /v1/chat/completions."""

    unsupported = {**fields.REFUSED, **fields.REFUSED_IN_CHATS}

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    chat_template_kwargs: TemplateOptions | None = None
    add_generation_prompt: bool | None = None  # null: what chat_template_kwargs say, else true

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


class TokenizeRequest(Refusing):
    """POST /tokenize, vLLM's shape: a prompt, or messages to be rendered first."""

    unsupported = fields.REFUSED_IN_TOKENIZE

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1, max_length=MAX_MESSAGES)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: TemplateOptions | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("either prompt or messages must be given")
        return self


class DetokenizeRequest(BaseModel):
    """POST /detokenize."""

    model_config = ConfigDict(strict=True, extra="ignore")
    model: str | None = None
    tokens: list[TokenId] = Field(max_length=MAX_TOKEN_IDS, fail_fast=True)  # one error, not one per id

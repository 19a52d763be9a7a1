"""What clients may send, as msgspec structs: OpenAI's fields, some of vLLM's, refusals for the rest.

Fields that neither API has are skipped, as vLLM does. Those that are known and not implemented are listed in
`fields`. Types and bounds stand in the annotations; `__post_init__` holds what they cannot say.
"""

from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw

from tangram_engine.sample.params import SamplingParams
from tangram_engine.validation import locate

from . import fields
from .bounded_values import (
    INT64,
    Int64,
    MaxTokens,
    MinP,
    MinTokens,
    Penalty,
    RepetitionPenalty,
    Temperature,
    TokenBias,
    TokenCount,
    TokenId,
    TopK,
    TopLogprobs,
    TopP,
)
from .defaults import SamplingDefaults
from .fields import FieldError, unsupported
from .jsonio import decode_value
from .refusals import Refusing, refuses
from .structure import AnswerStructure, read_structure
from .tools import read_calls, read_tool_choice, template_inputs, template_options

MAX_N = 16
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_PROMPTS = 64
MAX_BIASES = 1024  # tokens of logit_bias
MAX_BAD_WORDS = 64
MAX_ALLOWED = 16384  # tokens of allowed_token_ids
MAX_SEQUENCES = 64  # prompts * n of one HTTP request
MAX_MESSAGES = 4096
MAX_TOKEN_IDS = 1 << 18  # as many as values of a body: see jsonio
MAX_TOKENIZED = 1 << 18  # tokens of one text that /tokenize counts
MAX_CACHE_SALT = 1024  # characters; 43 of base64 are 256 bits
MAX_UNKNOWN_FIELD = 1 << 20  # bytes of one field of a message; decoding it holds the interpreter's lock
ROLES = ("system", "developer", "user", "assistant", "tool")
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, for /v1/completions

T = TypeVar("T")
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
BadWord = Annotated[str, Meta(min_length=1, max_length=256)]
Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]

# Each is checked, and built where it is rendered: a template sees fields that no model here has.
Messages = Annotated[list[Raw], Meta(min_length=1, max_length=MAX_MESSAGES)]

_NULL = Raw(b"null")


PROMPT_KINDS = "must be a string, a list of strings, a list of token ids or a list of such lists"
CONTENT_KINDS = (
    'must be a string or a list of parts {"type": "text", "text": "..."}; images and audio are not supported'
)


@refuses(fields.REFUSED_IN_STREAM_OPTIONS)
class StreamOptions(Refusing, kw_only=True):
    """OpenAI's stream_options."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's: every chunk has the usage so far


class Sampling(Refusing, kw_only=True):
    """What completions and chat completions share."""

    default_tokens: ClassVar[int | None] = None  # of an answer whose length is not asked for
    cut_at_context: ClassVar[bool] = (
        False  # whether an answer that is asked to be longer ends with the context
    )

    model: str
    n: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    best_of: Int64 | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    max_tokens: TokenCount | None = None
    min_tokens: MinTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Int64 | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=128)] | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    add_special_tokens: bool | None = None  # null: as is usual for the endpoint
    # Requests share cached prefixes with those of the same salt alone: vLLM's field, the tenant's isolation.
    cache_salt: Annotated[str, Meta(min_length=1, max_length=MAX_CACHE_SALT)] | None = None
    logit_bias: Annotated[dict[TokenId, TokenBias], Meta(max_length=MAX_BIASES)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_ALLOWED)] | None = None
    bad_words: Annotated[list[BadWord], Meta(max_length=MAX_BAD_WORDS)] | None = None
    response_format: Raw = _NULL
    structured_outputs: Raw = _NULL
    prompt_logprobs: TopLogprobs | None = None
    return_token_ids: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        read_structure(self.response_format, self.structured_outputs)
        if isinstance(self.stop, str) and not 1 <= len(self.stop) <= MAX_STOP_CHARACTERS:
            raise FieldError("stop", f"must have 1 to {MAX_STOP_CHARACTERS} characters")
        if self.best_of is not None and self.best_of != self.choices:
            raise unsupported("best_of", "other than n")
        if self.stream_options is not None and not self.stream:
            raise FieldError("stream_options", "is only allowed when stream is true")
        if self.stream and self.prompt_logprobs is not None:
            raise FieldError("prompt_logprobs", "is only there when stream is false")

    @property
    def stops(self) -> list[str]:
        """The stop strings, however many were sent."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def choices(self) -> int:
        """How many answers per prompt."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that has the usage."""
        options = self.stream_options
        return options is not None and bool(options.include_usage or self.usage_in_each_chunk)

    @property
    def usage_in_each_chunk(self) -> bool:
        """Whether every chunk has the usage so far. As in vLLM, `include_usage: false` switches it off."""
        options = self.stream_options
        return (
            options is not None
            and bool(options.continuous_usage_stats)
            and options.include_usage is not False
        )

    @property
    def prompt_alone(self) -> bool:
        """Whether no token is wanted but those of the prompt."""
        return False

    @property
    def structure(self) -> AnswerStructure | None:
        """What the answer has to look like; None for any text."""
        return read_structure(self.response_format, self.structured_outputs)

    def length_limit(self) -> tuple[str, int | None]:
        """The field by which the client limits the answer's length, and the limit."""
        return "max_tokens", self.max_tokens

    def wanted_logprobs(self) -> int | None:
        """How many alternatives per token, 0 for the chosen one alone, None for no logprobs."""
        raise NotImplementedError

    def scored_alternatives(self) -> int | None:
        """The same for the tokens of the prompt."""
        return self.prompt_logprobs

    def sampling(self, max_tokens: int, index: int, defaults: SamplingDefaults) -> SamplingParams:
        """Engine parameters of the answer with this index; each gets its own seed from the given one."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=_first(self.temperature, defaults.temperature, 1.0),
            top_p=_first(self.top_p, defaults.top_p, 1.0),
            top_k=max(_first(self.top_k, defaults.top_k, 0), 0),
            min_p=_first(self.min_p, defaults.min_p, 0.0),
            seed=None if self.seed is None else (self.seed + index) & INT64,
            logprobs=self.wanted_logprobs(),
            prompt_logprobs=self.scored_alternatives(),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=_first(self.repetition_penalty, defaults.repetition_penalty, 1.0),
            logit_bias=tuple((self.logit_bias or {}).items()),
            allowed_token_ids=tuple(self.allowed_token_ids or ()),
            min_tokens=self.min_tokens or 0,
        )


def _first(own: T | None, recommended: T | None, neutral: T) -> T:
    return next((value for value in (own, recommended) if value is not None), neutral)


@refuses(fields.REFUSED, fields.REFUSED_IN_COMPLETIONS)
class CompletionRequest(Sampling, kw_only=True):
    """POST /v1/completions."""

    default_tokens = DEFAULT_COMPLETION_TOKENS

    prompt: str | list[str | TokenId | list[TokenId]]
    logprobs: TopLogprobs | None = None
    max_tokens: MaxTokens | None = None
    echo: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.echo and self.stream and self.logprobs is not None:
            raise FieldError("echo", "beside logprobs is only there when stream is false")
        if self.prompt_alone and not self.echo and self.prompt_logprobs is None:
            raise FieldError("max_tokens", "must be at least 1 unless the prompt is asked for, by echo")
        if isinstance(self.prompt, list) and len(set(map(type, self.prompt))) != 1:
            raise FieldError("prompt", PROMPT_KINDS)
        if not isinstance(self.prompt, str) and not all(prompt != [] for prompt in self.prompt):
            raise FieldError("prompt", "every list of token ids must hold at least one")
        if len(self.prompts) > MAX_PROMPTS:
            raise FieldError("prompt", f"at most {MAX_PROMPTS} prompts are accepted, not {len(self.prompts)}")
        if len(self.prompts) * self.choices > MAX_SEQUENCES:
            raise FieldError("n", f"prompts * n must be at most {MAX_SEQUENCES}")

    @property
    def prompts(self) -> list[Any]:
        """Every prompt, as a string or a list of token ids."""
        single = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if single else list(self.prompt)

    @property
    def prompt_alone(self) -> bool:
        """See Sampling."""
        return self.max_tokens == 0

    def wanted_logprobs(self) -> int | None:
        """See Sampling."""
        return self.logprobs

    def scored_alternatives(self) -> int | None:
        """See Sampling."""
        counts = (self.prompt_logprobs, self.logprobs if self.echo else None)
        return max((count for count in counts if count is not None), default=None)


class TextPart(msgspec.Struct):
    """One part of a message's content; only text can be read here. The types are those of vLLM."""

    type: Literal["text", "input_text", "output_text", "refusal"]
    text: str | None = None
    refusal: str | None = None

    def __post_init__(self) -> None:
        if (self.refusal if self.type == "refusal" else self.text) is None:
            raise ValueError(CONTENT_KINDS)

    def plain(self) -> dict[str, str]:
        """What a chat template sees."""
        return {"type": "text", "text": (self.refusal if self.type == "refusal" else self.text) or ""}


@refuses(fields.REFUSED_IN_MESSAGES)
class Message(Refusing, kw_only=True):
    """The fields of a message that this server knows.

    Content is checked after the fields that are refused.
    """

    role: str
    content: str | Annotated[list[TextPart], Meta(max_length=256)] | None = None
    refusal: str | None = None
    name: Annotated[str, Meta(max_length=256)] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # vLLM's newer name of the same
    thinking: str | None = None  # and that of the templates of gpt-oss
    tool_calls: Raw = _NULL

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.role == "function":
            raise unsupported("role", '"function", the older name of "tool",')
        if self.role not in ROLES:
            raise FieldError("role", f"must be one of {', '.join(ROLES)}")
        if self.content is None and self.role != "assistant":
            raise FieldError("content", CONTENT_KINDS)
        read_calls(self.tool_calls)

    def plain(self) -> dict[str, Any]:
        """These fields for a chat template: "developer" under its older name, reasoning as in transformers.

        An assistant's message without content has its refusal as text.
        """
        content: Any = self.content if self.content is not None else self.refusal or ""
        if isinstance(content, list):
            content = [part.plain() for part in content]
        role = "system" if self.role == "developer" else self.role
        names = (self.reasoning_content, self.thinking, self.reasoning)
        reasoning = next((text for text in names if text is not None), None)
        message = {
            "thinking": reasoning if self.thinking is None else self.thinking,
            "role": role,
            "content": content,
            "name": self.name,
            "reasoning": self.reasoning,
            "reasoning_content": reasoning,
            "tool_calls": read_calls(self.tool_calls),
        }
        return {key: value for key, value in message.items() if value is not None}


class MessageError(ValueError):
    """The message with this index is not valid."""

    def __init__(self, index: int, error: msgspec.ValidationError) -> None:
        super().__init__(str(error))
        self.index = index
        self.error = error


def check_messages(messages: list[Raw]) -> None:
    """Raise MessageError or FieldError for the first message that is not valid."""
    for index, raw in enumerate(messages):
        try:
            decode_value(raw, Message)
        except msgspec.ValidationError as error:
            raise MessageError(index, error) from None
        for name, value in _unknown(decode_value(raw, dict[str, Raw])).items():
            path = f"messages.{index}.{name}"
            if len(memoryview(value)) > MAX_UNKNOWN_FIELD:
                raise FieldError(path, f"at most {MAX_UNKNOWN_FIELD} bytes are accepted")
            try:
                decode_value(value, object)
            except msgspec.ValidationError as error:  # a number that no float can hold
                where, what = locate(error)
                raise FieldError(f"{path}.{where}".rstrip("."), what) from None


def _unknown(written: dict[str, Raw]) -> dict[str, Raw]:
    return {name: value for name, value in written.items() if name not in Message.__struct_fields__}


def template_message(raw: Raw) -> dict[str, Any]:
    """What a chat template sees of a valid message, in the order of transformers; unknown fields, too."""
    written = decode_value(raw, dict[str, Raw])
    unknown = {name: decode_value(value, object) for name, value in _unknown(written).items()}
    values = unknown | decode_value(raw, Message).plain()
    ordered = {name: values.get(name) for name in ("thinking", *written, *values)}
    return {name: value for name, value in ordered.items() if value is not None}


def check_continued(body: "ChatRequest | TokenizeRequest") -> None:
    """Raise FieldError where a message is to be continued and another one to be begun."""
    if body.continue_final_message and body.add_generation_prompt:
        raise FieldError("continue_final_message", "does not go together with add_generation_prompt")


@refuses(fields.REFUSED, fields.REFUSED_IN_CHATS)
class ChatRequest(Sampling, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    chat_template_kwargs: Raw = _NULL
    add_generation_prompt: bool | None = None  # null: what chat_template_kwargs say, else true
    continue_final_message: bool | None = None
    tools: Raw = _NULL
    tool_choice: Raw = _NULL
    parallel_tool_calls: bool | None = None
    documents: Raw = _NULL
    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_messages(self.messages)
        template_options(self.chat_template_kwargs)
        check_continued(self)
        choice = read_tool_choice(self.tool_choice, self.tools)
        template_inputs(self.tools, self.documents)
        if self.structure is not None and choice.may_call:
            raise FieldError(
                self.structure.field, 'does not go together with tools; tool_choice "none" leaves them out'
            )
        if self.top_logprobs and not self.logprobs:
            raise FieldError("top_logprobs", "needs logprobs to be true")

    def length_limit(self) -> tuple[str, int | None]:
        """The newer of OpenAI's two names goes first."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return super().length_limit()

    def wanted_logprobs(self) -> int | None:
        """See Sampling."""
        return (self.top_logprobs or 0) if self.logprobs else None


@refuses(fields.REFUSED_IN_TOKENIZE)
class TokenizeRequest(Refusing, kw_only=True):
    """POST /tokenize, vLLM's shape: a prompt, or messages to be rendered first."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Raw = _NULL
    tools: Raw = _NULL
    documents: Raw = _NULL
    reasoning_effort: ReasoningEffort | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_messages(self.messages or [])
        template_options(self.chat_template_kwargs)
        check_continued(self)
        template_inputs(self.tools, self.documents)
        if self.prompt is None and self.messages is None:
            raise ValueError("either prompt or messages must be given")
        if self.prompt is not None and self.messages is not None:
            raise FieldError("messages", "cannot be given beside prompt")


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Meta(max_length=MAX_TOKEN_IDS)]

"""Turn a validated body into engine requests: prompts as token ids, checked against the model's context."""

import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tangram_engine.cache import ROOT, salted_root
from tangram_engine.messages import EngineInfo
from tangram_engine.sample.params import SamplingParams
from tangram_engine.sample.vocabulary import Vocabulary
from tangram_engine.schedule.request import Request
from tangram_engine.serve.answers.answer_parser import AnswerFormat
from tangram_engine.serve.answers.formats import HARMONY
from tangram_engine.serve.answers.reasoning import CLOSE, OPEN
from tangram_engine.serve.http.defaults import SamplingDefaults
from tangram_engine.serve.http.errors import (
    APIError,
    bad_request,
    context_length_exceeded,
    unavailable,
)
from tangram_engine.serve.http.params import (
    MAX_TOKENIZED,
    ChatRequest,
    CompletionRequest,
    Sampling,
    TokenizeRequest,
    template_message,
)
from tangram_engine.serve.http.structure import AnswerStructure
from tangram_engine.serve.http.tools import read_tool_choice, read_tools, template_inputs, template_options
from tangram_engine.serve.text.client import TextClient, TextUnavailable
from tangram_engine.serve.text.grammar import FORCED_FORMATS, GrammarError
from tangram_engine.serve.text.template import RESERVED, TemplateError
from tangram_engine.serve.text.tokenizer import PromptTooLong, TextTools, TokenizerError

_LAST_TOKENS = 16  # of a prompt: a tag and blanks
_THINKING = (
    "enable_thinking",
    "thinking",
)  # the switch of a template: Qwen3's name, that of DeepSeek and Granite


@dataclass(frozen=True, slots=True)
class RequestPreparer:
    """Turns validated bodies into engine requests. Waits for the text process: call it in a thread."""

    text: TextClient
    tools: TextTools
    info: EngineInfo
    defaults: SamplingDefaults
    call_format: str | None = None  # of the model's tool calls; None: not known
    thinks: bool = False  # whether answers begin with reasoning between tags

    def requests(self, body: CompletionRequest | ChatRequest, arrival: float) -> list[Request]:
        """One request per prompt and answer, prompts first: index = prompt * n + answer. Raises APIError."""
        if isinstance(body, ChatRequest):
            prompts = [self.chat_prompt(body)]
            field = "messages"
        else:
            special = body.add_special_tokens is not False
            prompts = [self._prompt(prompt, add_special_tokens=special) for prompt in body.prompts]
            field = "prompt"
        self._check_tokens("logit_bias", body.logit_bias or ())
        self._check_tokens("allowed_token_ids", body.allowed_token_ids or ())
        root = ROOT if body.cache_salt is None else salted_root(body.cache_salt)
        lengths = [self._answer_length(prompt, body, field) for prompt in prompts]
        grammar = self._grammar(body, prompts[0])
        banned = self._bad_words(body.bad_words or ())
        return [
            Request(
                id=uuid.uuid4().hex,
                prompt=prompt,
                params=self._params(body, length, index, grammar, banned),
                arrival=arrival,
                cache_root=root,
            )
            for prompt, length in zip(prompts, lengths, strict=True)
            for index in range(body.choices)
        ]

    def echo(self, body: CompletionRequest | ChatRequest) -> list[str] | None:
        """The texts that answers begin with, one for each prompt. Raises APIError."""
        if not isinstance(body, CompletionRequest) or not body.echo:
            return None
        with self._errors("prompt"):
            return [
                prompt
                if isinstance(prompt, str)
                else self.tools.decode(prompt, skip_special_tokens=body.skip_special_tokens)
                for prompt in body.prompts
            ]

    def _bad_words(self, words: Collection[str]) -> tuple[tuple[int, ...], ...]:
        """The tokens of each word, alone and behind a blank. Raises APIError."""
        limit = self.info.max_model_len
        texts = [text for word in words for text in (word, " " + word.lstrip())]
        with self._errors("bad_words"):
            tokens = [self.text.encode(text, limit, add_special_tokens=False) for text in texts]
        self._check_tokens("bad_words", [token for ids in tokens for token in ids])
        return tuple(dict.fromkeys(ids for ids in tokens if ids))

    def answer_format(self, body: CompletionRequest | ChatRequest, prompt: tuple[int, ...]) -> AnswerFormat:
        """How the text of an answer is to be read. Raises APIError."""
        if not isinstance(body, ChatRequest):
            return AnswerFormat()
        choice = read_tool_choice(body.tool_choice, body.tools)
        call_format = self._forced_format() if choice.forced else self.call_format
        if choice.may_call and call_format is None:
            raise bad_request(
                "tools: the format of this model's tool calls is not known; the server's --tool-call-parser "
                "sets one",
                param="tools",
                code="unsupported_parameter",
            )
        channels = call_format == HARMONY
        return AnswerFormat(
            call_format=call_format if choice.may_call or channels else None,
            tools=read_tools(body.tools) if choice.may_call else {},
            parallel=body.parallel_tool_calls is not False,
            thinks=self.thinks and not channels,
            opened=self._reasoning(prompt) == "begun",
            shows_reasoning=body.include_reasoning is not False,
        )

    def _forced_format(self) -> str:
        """Of calls that a grammar orders: the model's own, where that can be written down as text."""
        return self.call_format if self.call_format in FORCED_FORMATS else "llama3_json"

    def _grammar(self, body: CompletionRequest | ChatRequest, prompt: tuple[int, ...]) -> str | None:
        """The grammar of the answer, if it has one. Raises APIError."""
        structure = body.structure
        reasoning = "none"
        if isinstance(body, ChatRequest):
            choice = read_tool_choice(body.tool_choice, body.tools)
            if choice.forced:
                calls = {"format": self._forced_format(), "tools": dict(choice.tools)}
                parallel = {"parallel": body.parallel_tool_calls is not False and not choice.named}
                structure = AnswerStructure("tool_choice", "calls", calls | parallel)
            reasoning = self._reasoning(prompt)
        if structure is None:
            return None
        if body.allowed_token_ids:  # together they might allow nothing
            field = "allowed_token_ids"
            raise bad_request(f"{field}: does not go together with {structure.field}", param=field)
        with self._errors(structure.field):
            return self.text.grammar(structure.kind, structure.value, reasoning)

    def _reasoning(self, prompt: tuple[int, ...]) -> str:
        """What of its reasoning the answer to a prompt begins with: "none", "optional" or "begun"."""
        if not self.thinks:
            return "none"
        end = self.tools.decode(prompt[-_LAST_TOKENS:], skip_special_tokens=False).rstrip()
        return "begun" if end.endswith(OPEN) else "none" if end.endswith(CLOSE) else "optional"

    def vocabulary(self) -> Vocabulary:
        """What the engine needs for grammars. Raises APIError."""
        with self._errors("structured_outputs"):
            tokens, special = self.text.vocabulary(self.info.vocab_size)
        ends = () if self.tools.end_token is None else (self.tools.end_token,)
        return Vocabulary(tuple(tokens), tuple(special), ends)

    def _params(
        self,
        body: Sampling,
        length: int,
        index: int,
        grammar: str | None,
        bad_words: tuple[tuple[int, ...], ...],
    ) -> SamplingParams:
        """The end token of the tokenizer ends an answer, as those of config.json do, which the engine has."""
        params = body.sampling(length, index, self.defaults)
        if bad_words:
            params = replace(params, bad_words=bad_words)
        if grammar is not None:  # it says where the answer ends
            params = replace(params, grammar=grammar, ignore_eos=False, min_tokens=0)
        if params.ignore_eos or self.tools.end_token is None:
            return params
        return replace(params, stop_token_ids=(*params.stop_token_ids, self.tools.end_token))

    def chat_prompt(self, body: ChatRequest | TokenizeRequest) -> tuple[int, ...]:
        """Render the chat template and tokenize; usually the template writes the special tokens itself."""
        if not self.text.has_template:
            raise bad_request(
                "This model has no chat template; use /v1/completions.",
                param="messages",
                code="no_chat_template",
            )
        continued = bool(body.continue_final_message)
        options: dict[str, Any] = {
            "add_generation_prompt": not continued,
            **template_options(body.chat_template_kwargs),
        }
        if body.add_generation_prompt is not None:
            options["add_generation_prompt"] = body.add_generation_prompt
        if reserved := sorted(RESERVED & options.keys()):
            raise bad_request(
                f"chat_template_kwargs.{reserved[0]} is set by the server",
                param=f"chat_template_kwargs.{reserved[0]}",
            )
        self._add_reasoning(options, body.reasoning_effort)
        inputs = template_inputs(body.tools, body.documents)
        for name in inputs:
            if name not in self.text.features.variables:
                raise _not_read(name)
        special = bool(body.add_special_tokens)
        with self._errors("messages"):
            messages = [template_message(raw) for raw in body.messages or ()]
            return self.text.chat(
                messages,
                options,
                self.info.max_model_len,
                inputs=inputs,
                add_special_tokens=special,
                continued=continued,
            )

    def _add_reasoning(self, options: dict[str, Any], effort: str | None) -> None:
        """Let a template know how much to reason, by the names that it reads. Raises APIError."""
        if effort is None:
            return
        values = {"reasoning_effort": effort} | dict.fromkeys(_THINKING, effort != "none")
        read = values.keys() & self.text.features.variables
        if not read and effort != "none":
            raise _not_read("reasoning_effort")
        for name in read:
            options.setdefault(name, values[name])

    def tokens(self, body: TokenizeRequest) -> tuple[int, ...]:
        """Token ids that are only counted: the limit of a text is MAX_TOKENIZED. Raises APIError."""
        if body.messages is not None:
            return self.chat_prompt(body)
        special = body.add_special_tokens is not False
        with self._errors("prompt"):
            try:
                return self.text.encode(body.prompt or "", MAX_TOKENIZED, add_special_tokens=special)
            except PromptTooLong:
                raise bad_request(
                    f"prompt: at most {MAX_TOKENIZED} tokens are counted at once", param="prompt"
                ) from None

    def _prompt(self, prompt: str | list[int], *, add_special_tokens: bool) -> tuple[int, ...]:
        if isinstance(prompt, str):
            limit = self.info.max_model_len
            with self._errors("prompt"):
                return self.text.encode(prompt, limit, add_special_tokens=add_special_tokens)
        return tuple(prompt)

    @contextmanager
    def _errors(self, field: str) -> Iterator[None]:
        """Turn what the text process refuses into what the client gets."""
        try:
            yield
        except PromptTooLong as error:
            raise self._too_long(str(error), field) from None
        except (TemplateError, TokenizerError) as error:
            code = "chat_template_error" if isinstance(error, TemplateError) else "tokenizer_error"
            raise bad_request(f"{field}: {error}", param=field, code=code) from None
        except GrammarError as error:
            raise bad_request(f"{field}: {error}", param=field, code="grammar_error") from None
        except TextUnavailable as error:
            raise unavailable(f"{error}; please retry.", "text_process_unavailable") from None

    def _answer_length(self, prompt: tuple[int, ...], body: Sampling, field: str) -> int:
        """The answer's largest length: what was asked for, else the endpoint's default, else what is left.

        The checkpoint's max_new_tokens bounds it, as in vLLM, whatever was asked for.
        """
        if not prompt:
            raise bad_request(f"{field}: the prompt has no tokens", param=field, code="empty_prompt")
        if (largest := max(prompt)) >= self.info.vocab_size:
            raise bad_request(
                f"{field}: token id {largest} is outside the vocabulary of {self.info.vocab_size}",
                param=field,
            )
        tokens_left = self.info.max_model_len - len(prompt)
        if tokens_left < 1:
            raise self._too_long(str(len(prompt)), field)
        field_of_length, requested_tokens = body.length_limit()
        if body.prompt_alone:
            requested_tokens = 1  # which is not shown
        if requested_tokens is not None and requested_tokens > tokens_left and not body.cut_at_context:
            raise context_length_exceeded(
                f"This model's maximum context length is {self.info.max_model_len} tokens. The prompt has "
                f"{len(prompt)} and {requested_tokens} were asked for; at most {tokens_left} are possible.",
                field_of_length,
            )
        bounds = (requested_tokens or body.default_tokens, self.defaults.max_new_tokens)
        longest = min([tokens_left, *(bound for bound in bounds if bound is not None)])
        if body.min_tokens is not None and body.min_tokens > longest:
            raise bad_request(
                f"min_tokens: {body.min_tokens} is above {longest}, the most tokens that the answer can have",
                param="min_tokens",
            )
        return longest

    def _check_tokens(self, field: str, tokens: Collection[int]) -> None:
        largest = max(tokens, default=0)
        if largest >= self.info.vocab_size:
            raise bad_request(
                f"{field}: token id {largest} is outside the vocabulary of {self.info.vocab_size}",
                param=field,
            )

    def _too_long(self, count: str, field: str) -> APIError:
        return context_length_exceeded(
            f"This model's maximum context length is {self.info.max_model_len} tokens, of which one must be "
            f"left for the answer. The prompt has {count}.",
            field,
        )


def _not_read(field: str) -> APIError:
    """A field that would have no effect on the prompt."""
    message = f"{field}: the chat template of this model does not read it, so it is not supported."
    return bad_request(message, param=field, code="unsupported_parameter")

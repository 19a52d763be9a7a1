"""Turn a validated body into engine requests: prompts as token ids, checked against the model's context."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tangram_engine.cache import ROOT, salted_root
from tangram_engine.messages import EngineInfo
from tangram_engine.sample.params import SamplingParams
from tangram_engine.schedule.request import Request
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
    template_options,
)
from tangram_engine.serve.text.client import TextClient, TextUnavailable
from tangram_engine.serve.text.template import RESERVED, TemplateError
from tangram_engine.serve.text.tokenizer import PromptTooLong, TextTools, TokenizerError


@dataclass(frozen=True, slots=True)
class RequestPreparer:
    """Turns validated bodies into engine requests. Waits for the text process: call it in a thread."""

    text: TextClient
    tools: TextTools
    info: EngineInfo
    defaults: SamplingDefaults

    def requests(self, body: CompletionRequest | ChatRequest, arrival: float) -> list[Request]:
        """One request per prompt and answer, prompts first: index = prompt * n + answer. Raises APIError."""
        if isinstance(body, ChatRequest):
            prompts = [self.chat_prompt(body)]
            field = "messages"
        else:
            special = body.add_special_tokens is not False
            prompts = [self._prompt(prompt, add_special_tokens=special) for prompt in body.prompts]
            field = "prompt"
        root = ROOT if body.cache_salt is None else salted_root(body.cache_salt)
        lengths = [self._answer_length(prompt, body, field) for prompt in prompts]
        return [
            Request(
                id=uuid.uuid4().hex,
                prompt=prompt,
                params=self._params(body, length, index),
                arrival=arrival,
                cache_root=root,
            )
            for prompt, length in zip(prompts, lengths, strict=True)
            for index in range(body.choices)
        ]

    def _params(self, body: Sampling, length: int, index: int) -> SamplingParams:
        """The end token of the tokenizer ends an answer, as those of config.json do, which the engine has."""
        params = body.sampling(length, index, self.defaults)
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
        options: dict[str, Any] = {
            "add_generation_prompt": True,
            **template_options(body.chat_template_kwargs),
        }
        if body.add_generation_prompt is not None:
            options["add_generation_prompt"] = body.add_generation_prompt
        if reserved := sorted(RESERVED & options.keys()):
            raise bad_request(
                f"chat_template_kwargs.{reserved[0]} is set by the server",
                param=f"chat_template_kwargs.{reserved[0]}",
            )
        special = bool(body.add_special_tokens)
        with self._errors("messages"):
            messages = [template_message(raw) for raw in body.messages or ()]
            return self.text.chat(messages, options, self.info.max_model_len, add_special_tokens=special)

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
        if requested_tokens is not None and requested_tokens > tokens_left:
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

    def _too_long(self, count: str, field: str) -> APIError:
        return context_length_exceeded(
            f"This model's maximum context length is {self.info.max_model_len} tokens, of which one must be "
            f"left for the answer. The prompt has {count}.",
            field,
        )

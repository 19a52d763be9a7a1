"""Text to token ids and back, by tokenizer.json and the tokens declared beside it.

No code of the checkpoint is run.
"""

import array
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tangram_engine.checkpoint.errors import CheckpointError, invalid
from tangram_engine.checkpoint.files import exists, read_bytes

from .declared_tokens import (
    EOS,
    TOKENIZER_CONFIG,
    DeclaredTokens,
    read_declared_tokens,
    read_tokenizer_config,
)
from .template import ChatTemplate, TemplateError

TOKENIZER = "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"
TOKENIZER_LIMIT = 32 << 20  # bytes; loading takes 16 times as much memory. The largest known ones have 32 MiB
_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # how SentencePiece models spell a single byte
TEMPLATE_LIMIT = 256 << 10  # bytes; the largest known templates have about 30 KiB
_PIECE = 16 << 10  # characters
_LARGEST_ID = (1 << 22) - 1  # of a token: a table has a row for each
_LONGEST_TOKEN = 1024  # characters; the longest known ones have some hundreds
_SHORT = 64  # tokens; decoded in less time than the interpreter's lock takes to change hands
_DECODER_STEPS = 16


class TokenizerError(Exception):
    """The tokenizer fails on a text or on token ids, or goes over a limit."""


class PromptTooLong(Exception):
    """The text has too many tokens; the argument says how many, in words."""


class _Native:
    """Turns each failure of the Rust library into TokenizerError, without the text it may quote.

    A panic arrives as pyo3_runtime.PanicException, which derives from BaseException and cannot be imported.
    Not `contextlib.contextmanager`, which would take as long as the decoding of a token.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is None or issubclass(kind, MemoryError | CheckpointError):
            return
        if issubclass(kind, Exception):
            raise TokenizerError(f"the tokenizer fails: {str(error)[:200]}") from None
        if kind.__name__ == "PanicException":
            raise TokenizerError("the tokenizer's library panics") from None


_NATIVE = _Native()


@dataclass(frozen=True, slots=True)
class TextTools:
    """A loaded tokenizer. `encode` and `exceeds` can take any time: they are for the text process."""

    tokenizer: Tokenizer
    longest_token: int | None  # bytes; None where characters of a text may be dropped first
    token_lengths: Sequence[int] = ()  # by token id: the characters that it decodes to at most
    decoder_steps: tuple[dict[str, Any], ...] = ()  # as `_decoder_steps` lists them
    special: frozenset[int] = frozenset()  # tokens that decoding skips where that is asked for
    end_token: int | None = None  # of a text, by the tokenizer's files; config.json may name others
    # Texts of tokens decoded alone, without and with special tokens skipped: every other call of a stream.
    _alone: tuple[dict[int, str], dict[int, str]] = field(default_factory=lambda: ({}, {}), repr=False)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; chat templates write special tokens themselves. Raises TokenizerError."""
        with _NATIVE:  # "fast": without offsets, which are not needed
            encodings = self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            ids: list[int] = encodings[0].ids
        return ids

    def exceeds(self, text: str, limit: int) -> bool:
        """Whether a text has far more than `limit` tokens, at a cost that grows with the limit.

        Tokenizing takes some 200 bytes a token, and a token can be a single byte. Cutting the text changes
        the count a little at each cut, hence "far": the sum over the pieces must be over twice the limit.
        """
        if len(text.encode()) <= 4 * limit:
            return False
        count = 0
        for start in range(0, len(text), _PIECE):
            count += len(self.encode(text[start : start + _PIECE], add_special_tokens=False))
            if count > 2 * limit:
                return True
        return False

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of its token count, without tokenizing: hopelessly long texts cost nothing."""
        return len(text) // self.longest_token if self.longest_token else 0

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; an incomplete UTF-8 sequence becomes U+FFFD. Raises TokenizerError."""
        single_tokens = self._alone[skip_special_tokens]
        if len(ids) == 1 and (alone := single_tokens.get(ids[0])) is not None:
            return alone
        with _NATIVE:
            text: str
            if len(ids) <= _SHORT:
                text = self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
            else:  # the batch alone gives the interpreter's lock away while it decodes
                text = self.tokenizer.decode_batch([ids], skip_special_tokens=skip_special_tokens)[0]
        if text and len(ids) == 1:  # ids outside the vocabulary, of which there is no end, have none
            single_tokens[ids[0]] = text
        return text

    def most_characters(self, ids: Sequence[int]) -> int:
        """An upper bound of the length of the decoded text, without decoding."""
        lengths = self.token_lengths
        return sum(lengths[token] for token in ids if token < len(lengths))

    def drops(self, token: int, *, skip_special_tokens: bool = True) -> bool:
        """Whether `decode` leaves a token out before its decoder sees it."""
        return (skip_special_tokens and token in self.special) or self.tokenizer.id_to_token(token) is None

    def token_text(self, token: int) -> str:
        """A token on its own, for logprobs; bytes that are no character become U+FFFD."""
        return self.token_bytes(token).decode("utf-8", errors="replace")

    def token_name(self, token: int) -> str:
        """A name of its own for every token: part of a character is spelt as OpenAI does, `bytes:\\xf0`."""
        raw = self.token_bytes(token)
        try:
            return raw.decode("utf-8") or f"token_id:{token}"
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def token_bytes(self, token: int) -> bytes:
        """The exact bytes a token stands for, as the decoder writes it between others."""
        piece: str | None = self.tokenizer.id_to_token(token)
        if piece is None:  # a padding row of the embedding
            return b""
        for step in self.decoder_steps:
            if step["type"] == "Replace":
                piece = piece.replace(step["pattern"]["String"], step["content"])
            elif step["type"] == "Metaspace":
                piece = piece.replace(step["replacement"], " ")
            elif step["type"] == "ByteFallback" and (match := _BYTE_FALLBACK.fullmatch(piece)):
                return bytes([int(match[1], 16)])
            elif step["type"] == "ByteLevel" and all(letter in _byte_letters() for letter in piece):
                return bytes(_byte_letters()[letter] for letter in piece)
        return piece.encode("utf-8")


@cache
def _byte_letters() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 as itself, the other 68 from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def load_tokenizer(directory: Path) -> TextTools:
    """Read tokenizer.json and add the tokens that other files declare. Raises CheckpointError.

    Its ids may reach beyond the embedding, as with a padding token that was added without resizing the model.
    """
    # Texts come one by one; the library would keep a thread for each CPU of the machine.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    raw = read_bytes(directory, TOKENIZER, TOKENIZER_LIMIT)
    declared = read_declared_tokens(directory)
    try:
        with _NATIVE:
            return _text_tools(raw, declared)
    except TokenizerError as error:
        raise invalid(f"{TOKENIZER} cannot be loaded: {error}") from None


def _text_tools(raw: bytes, declared: DeclaredTokens) -> TextTools:
    tokenizer = Tokenizer.from_str(raw.decode("utf-8"))
    if not tokenizer.get_vocab_size():
        raise invalid(f"{TOKENIZER} has no vocabulary")
    declared.add_to(tokenizer)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # Before anything is decoded.
    steps = _decoder_steps(json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else {})
    vocabulary = tokenizer.get_vocab()
    longest, largest = max(map(len, vocabulary)), max(vocabulary.values())
    if largest > _LARGEST_ID:
        raise invalid(f"{TOKENIZER} has token id {largest}; at most {_LARGEST_ID} is accepted")
    if longest > _LONGEST_TOKEN:
        raise invalid(
            f"{TOKENIZER} has a token of {longest} characters; at most {_LONGEST_TOKEN} are accepted"
        )
    one_letter_a_byte = [step["type"] for step in steps] == ["ByteLevel"]
    end = declared.named.get(EOS)
    return TextTools(
        tokenizer,
        longest_token=longest if _spells_every_byte(tokenizer, steps) else None,
        token_lengths=_token_lengths(vocabulary, largest, one_letter_a_byte=one_letter_a_byte),
        decoder_steps=tuple(steps),
        special=_special(tokenizer),
        end_token=None if end is None else tokenizer.token_to_id(end.content),
    )


def _token_lengths(vocabulary: dict[str, int], largest: int, *, one_letter_a_byte: bool) -> Sequence[int]:
    """How many characters each token decodes to at most: its bytes, since no step adds any.

    A byte that is no character is one, U+FFFD; without steps, the library writes a blank between two tokens.
    """
    lengths = array.array("H", bytes(2 * (largest + 1)))
    for piece, token in vocabulary.items():  # an added token may have the id of another one
        letters = len(piece) if one_letter_a_byte else len(piece.encode("utf-8", "replace"))
        lengths[token] = max(lengths[token], letters + 1)
    return lengths


def _spells_every_byte(tokenizer: Tokenizer, steps: list[dict[str, Any]]) -> bool:
    """Whether each token is at most as long as its text: no normalizer and no token drops characters."""
    added = tokenizer.get_added_tokens_decoder().values()
    strips = any(token.lstrip or token.rstrip for token in added)
    byte_level = any(step["type"] == "ByteLevel" for step in steps)
    return byte_level and tokenizer.normalizer is None and not strips


def _special(tokenizer: Tokenizer) -> frozenset[int]:
    """By the library's own answer: a token that was declared again as not special is still skipped."""

    def is_skipped(token: int, *, declared: bool) -> bool:
        try:
            with _NATIVE:
                with_it, without_it = (
                    tokenizer.decode([token], skip_special_tokens=skip) for skip in (False, True)
                )
        except TokenizerError:  # a decoder that fails on a short text
            return declared
        return bool(with_it) and not without_it

    added = tokenizer.get_added_tokens_decoder()
    return frozenset(token for token, flags in added.items() if is_skipped(token, declared=flags.special))


def load_chat_template(directory: Path) -> ChatTemplate | None:
    """Compile chat_template.jinja or the entry of tokenizer_config.json. Raises CheckpointError.

    Compiling evaluates constant expressions, so this belongs into the text process as rendering does.
    """
    config = read_tokenizer_config(directory)
    source = _template(directory, config)
    try:
        return None if source is None else ChatTemplate(source, read_declared_tokens(directory).texts)
    except TemplateError as error:
        raise invalid(str(error)) from None


def _decoder_steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps from tokens to text, each of a kind that takes linear time and makes no text longer.

    Decoding runs in the API process at every token: a regular expression there could stop all streams.
    """
    steps = _flat(decoder)
    for step in steps:
        kind = step["type"]
        if kind == "Replace":
            old, new = step["pattern"].get("String"), step["content"]
            safe = old is not None and 0 < len(old.encode()) >= len(new.encode())
        else:
            safe = kind in {"ByteLevel", "ByteFallback", "Fuse", "Strip", "Metaspace"}
        if not safe or len(steps) > _DECODER_STEPS:
            raise invalid(f"{TOKENIZER}: decoder: {json.dumps(step)[:200]} is not supported")
    return steps


def _flat(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder.get("type") == "Sequence":
        return [step for part in decoder["decoders"] for step in _flat(part)]
    return [decoder] if decoder else []


def _template(directory: Path, config: dict[str, Any]) -> str | None:
    """chat_template.jinja (transformers 5) goes before the entry of tokenizer_config.json (4)."""
    if exists(directory, CHAT_TEMPLATE):
        try:
            return read_bytes(directory, CHAT_TEMPLATE, TEMPLATE_LIMIT).decode("utf-8")
        except UnicodeDecodeError as error:
            raise invalid(f"{CHAT_TEMPLATE} is not UTF-8: {error}") from None
    template = config.get("chat_template")
    if isinstance(template, list):  # several named ones
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    if template is None:
        return None
    if not isinstance(template, str):
        raise invalid(f"{TOKENIZER_CONFIG}: chat_template must be a string or a list of named ones")
    if len(template) > TEMPLATE_LIMIT:
        raise invalid(f"{TOKENIZER_CONFIG}: chat_template is longer than {TEMPLATE_LIMIT} characters")
    return template

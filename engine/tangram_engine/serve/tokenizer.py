"""Text to token ids and back, by tokenizer.json alone; no code of the checkpoint is run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tangram_engine.checkpoint.errors import invalid
from tangram_engine.checkpoint.files import exists, read_bytes, strict_object

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
_TOKENIZER_LIMIT = 128 << 20
_CONFIG_LIMIT = 8 << 20
TEMPLATE_LIMIT = 256 << 10  # bytes; the largest known templates have about 30 KiB


@dataclass(frozen=True, slots=True)
class TextTools:
    """A loaded tokenizer with what the chat template needs."""

    tokenizer: Tokenizer
    chat_template: str | None
    special_tokens: dict[str, str]  # bos_token, eos_token, … as the template's variables

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Chat templates write their special tokens themselves."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; an incomplete UTF-8 sequence becomes U+FFFD."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text


def load_tokenizer(directory: Path, vocab_size: int) -> TextTools:
    """Read tokenizer.json, tokenizer_config.json and chat_template.jinja. Raises CheckpointError.

    An id at or above `vocab_size` would index outside the embedding, so such a tokenizer is refused.
    """
    raw = read_bytes(directory, TOKENIZER, _TOKENIZER_LIMIT)
    try:
        tokenizer = Tokenizer.from_str(raw.decode("utf-8"))
    except Exception as error:  # noqa: BLE001  (the Rust library raises plain Exception)
        raise invalid(f"{TOKENIZER} cannot be loaded: {str(error)[:300]}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest < 0:
        raise invalid(f"{TOKENIZER} has no vocabulary")
    if largest >= vocab_size:
        raise invalid(f"{TOKENIZER} has token id {largest}; config.json's vocab_size is {vocab_size}")
    config = {}
    if exists(directory, TOKENIZER_CONFIG):
        config = strict_object(read_bytes(directory, TOKENIZER_CONFIG, _CONFIG_LIMIT), TOKENIZER_CONFIG)
    return TextTools(tokenizer, _template(directory, config), _special_tokens(config))


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


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    tokens = {}
    for key in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = config.get(key)
        if isinstance(value, dict):  # an AddedToken, written out
            value = value.get("content")
        if isinstance(value, str):
            tokens[key] = value
    return tokens

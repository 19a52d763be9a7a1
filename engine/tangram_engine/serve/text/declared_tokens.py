"""The tokens that a checkpoint declares beside tokenizer.json, which transformers 5 adds to it.

With `added_tokens_decoder` in tokenizer_config.json, transformers reads no other file. Without, the special
tokens of special_tokens_map.json replace those of tokenizer_config.json, and added_tokens.json has the ids.
Source: `PreTrainedTokenizerBase._from_pretrained` and `TokenizersBackend.__init__`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from tokenizers import AddedToken, Tokenizer

from tangram_engine.checkpoint.errors import invalid
from tangram_engine.checkpoint.files import exists, read_bytes, strict_object
from tangram_engine.validation import locate

TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"
EOS = "eos_token"
TEMPLATE_TOKENS = ("bos_token", EOS, "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LIMIT = 8 << 20  # bytes of each file
_EXTRA = ("extra_special_tokens", "additional_special_tokens")  # of transformers 5 and 4

T = TypeVar("T")
_TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]


class DeclaredToken(msgspec.Struct, frozen=True):
    """A token written out, with how text around it is matched; `normalized` is null where it is not said."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None
    special: bool = False

    def added(self, *, special: bool) -> AddedToken:
        """As tokenizers takes it; a token that has a name is special whatever its entry says."""
        return AddedToken(
            self.content,
            single_word=self.single_word,
            lstrip=self.lstrip,
            rstrip=self.rstrip,
            normalized=not self.special if self.normalized is None else self.normalized,
            special=special or self.special,
        )


@dataclass(frozen=True, slots=True)
class DeclaredTokens:
    """What the files beside tokenizer.json declare."""

    by_id: dict[int, DeclaredToken]
    named: dict[str, DeclaredToken]  # special tokens by name: bos_token, eos_token, ...
    extra: tuple[DeclaredToken, ...]  # special tokens without a name
    source: str  # the file that has the ids

    @property
    def texts(self) -> dict[str, str]:
        """The named special tokens, as chat templates see them."""
        return {name: token.content for name, token in self.named.items()}

    def add_to(self, tokenizer: Tokenizer) -> None:
        """Add what tokenizer.json lacks. Raises CheckpointError where a token would get another id."""
        for token_id, token in self.by_id.items():
            present = tokenizer.id_to_token(token_id)
            if present is not None and present != token.content:
                raise self._conflict(token_id, token, f"has {present[:100]!r} there")
        tokenizer.add_tokens(list(self._missing(tokenizer)))
        for token_id, token in self.by_id.items():
            actual = tokenizer.token_to_id(token.content)
            if token.content and actual != token_id:
                raise self._conflict(token_id, token, f"makes it {actual}: ids must follow without a gap")

    def _missing(self, tokenizer: Tokenizer) -> Iterator[AddedToken]:
        """Tokens with an id in the order of their ids, then the special ones that are no added token yet.

        How text around a token is matched is as tokenizer_config.json says, else as tokenizer.json does.
        """
        named = {token.content for token in self.named.values()}
        known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        for _, token in sorted(self.by_id.items()):
            if self.source == TOKENIZER_CONFIG or token.content not in known:
                known.add(token.content)
                yield token.added(special=token.content in named)
        for token in (*self.named.values(), *self.extra):
            if token.content not in known:
                known.add(token.content)
                yield token.added(special=True)

    def _conflict(self, token_id: int, token: DeclaredToken, problem: str) -> Exception:
        return invalid(
            f"{self.source} declares {token.content[:100]!r} as token {token_id}, and tokenizer.json "
            f"{problem}; save the tokenizer again with transformers, so that tokenizer.json has all tokens"
        )


def read_declared_tokens(directory: Path) -> DeclaredTokens:
    """Read what tokenizer_config.json and the older files declare. Raises CheckpointError."""
    config = read_tokenizer_config(directory)
    if config.get("added_tokens_decoder") is not None:
        entries = _convert(config["added_tokens_decoder"], dict[str, DeclaredToken], "added_tokens_decoder")
        by_id = {_token_id(key): token for key, token in entries.items()}
        return DeclaredTokens(by_id, _named(config), tuple(_extra(config)), TOKENIZER_CONFIG)
    special = _read(directory, SPECIAL_TOKENS_MAP)
    named = _named(config) | _named(special, SPECIAL_TOKENS_MAP)
    extra = (*_extra(config), *_extra(special, SPECIAL_TOKENS_MAP))
    ids = _convert(_read(directory, ADDED_TOKENS), dict[str, _TokenId], "", ADDED_TOKENS)
    specials = {token.content for token in (*named.values(), *extra)}
    by_id = {number: DeclaredToken(text, special=text in specials) for text, number in ids.items()}
    return DeclaredTokens(by_id, named, extra, ADDED_TOKENS)


def read_tokenizer_config(directory: Path) -> dict[str, Any]:
    """tokenizer_config.json, empty where it is missing. Raises CheckpointError."""
    return _read(directory, TOKENIZER_CONFIG)


def _read(directory: Path, name: str) -> dict[str, Any]:
    return strict_object(read_bytes(directory, name, _LIMIT), name) if exists(directory, name) else {}


def _named(config: dict[str, Any], file: str = TOKENIZER_CONFIG) -> dict[str, DeclaredToken]:
    """The usual names, and those of a model's own: any other string whose key ends in `_token`."""
    own = [key for key, value in config.items() if key.endswith("_token") and _is_token(value)]
    values = {key: config.get(key) for key in (*TEMPLATE_TOKENS, *own)}
    if isinstance(config.get(_EXTRA[0]), dict):
        values |= config[_EXTRA[0]]
    return {key: _token(value, key, file) for key, value in values.items() if value is not None}


def _is_token(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and "content" in value)


def _extra(config: dict[str, Any], file: str = TOKENIZER_CONFIG) -> Iterator[DeclaredToken]:
    for key in _EXTRA:
        value = config.get(key)
        if value is None or (key == _EXTRA[0] and isinstance(value, dict)):
            continue
        for token in _convert(value, list[Any], key, file):
            yield _token(token, key, file)


def _token(value: Any, key: str, file: str) -> DeclaredToken:
    if isinstance(value, str):
        return DeclaredToken(value, special=True)
    return msgspec.structs.replace(_convert(value, DeclaredToken, key, file), special=True)


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdecimal() and len(key) <= 9):
        raise invalid(f"{TOKENIZER_CONFIG}: added_tokens_decoder: {key[:100]!r} is no token id")
    return int(key)


def _convert(value: Any, kind: type[T], path: str, file: str = TOKENIZER_CONFIG) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise invalid(": ".join(filter(None, [file, path, *locate(error)]))) from None

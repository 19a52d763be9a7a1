"""The tokenizer: byte-level BPE with 4096 entries, role tokens, and the chat template that uses them."""

import json
from collections.abc import Iterable
from pathlib import Path

import jinja2
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCABULARY_SIZE = 4096
BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
SPECIAL_TOKENS = [
    BEGIN,
    END,
    PAD,
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
]  # their ids are 0..5, in this order
MAX_POSITIONS = 1024
# One turn is `<|role|>\ncontent<|end|>\n`. Newer clients call the system role `developer`.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% set role = 'system' if message['role'] == 'developer' else message['role'] %}"
    "{% if role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('role must be system, user or assistant, not ' ~ message['role']) }}{% endif %}"
    "{{ '<|' + role + '|>\n' + (message['content'] | trim) + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learn the merges from the texts. Every byte is in the alphabet, so no text is unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=16,  # rulers of dashes and equal signs are not worth an entry each
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A",
        pair=f"{BEGIN} $A {BEGIN} $B",
        special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))],
    )
    return tokenizer


def render(chat: list[dict[str, str]]) -> str:
    """Return the chat as the model reads it."""
    return jinja2.Template(CHAT_TEMPLATE, keep_trailing_newline=True).render(bos_token=BEGIN, messages=chat)


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and special_tokens_map.json for transformers."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": BEGIN, "eos_token": END, "pad_token": PAD}
    config = {
        **names,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_POSITIONS,
        "clean_up_tokenization_spaces": False,
        "padding_side": "left",
        "chat_template": CHAT_TEMPLATE,
    }
    for file, content in (("tokenizer_config.json", config), ("special_tokens_map.json", names)):
        (folder / file).write_text(json.dumps(content, indent=2) + "\n")

"""Chat templates come from strangers: they are rendered as written, and can neither hang nor escape."""

import time
from pathlib import Path

import pytest

from tangram_engine.checkpoint import CheckpointError
from tangram_engine.serve.template import ChatTemplate, TemplateError
from tangram_engine.serve.tokenizer import load_tokenizer

HOSTILE = {
    "attribute escape": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals escape": "{{ raise_exception.__globals__.sys }}",
    "self escape": "{{ self.__init__.__globals__ }}",
    "import": "{{ __import__('os').system('true') }}",
    "mutation": "{{ messages.append(1) }}",
    "huge range": "{% for i in range(10**9) %}{% endfor %}",
    "huge string": "{{ 'a' * 10**9 }}",
    "huge list": "{{ [1] * 10**9 }}",
    "huge power": "{{ 10 ** 10 ** 10 }}",
    "huge padding": "{{ 'a' | center(10**9) }}",
    "huge method": "{{ 'a'.ljust(10**9) }}",
    "huge percent": "{{ '%1000000000d' % 1 }}",
    "huge format": "{{ '{:1000000000}'.format(1) }}",
    "huge batch": "{{ [1] | batch(10**9, 0) | list }}",
    "deep recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "long output": "{% for i in range(99999) %}" + "x" * 200 + "{% endfor %}",
}


def test_a_template_sees_messages_special_tokens_and_the_generation_prompt() -> None:
    template = ChatTemplate(
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m['content'] | trim }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}",
        {"bos_token": "<s>"},
    )
    text = template.render([{"role": "user", "content": " hi "}], add_generation_prompt=True)
    assert text == "<s>[user]hi\n[assistant]"


def test_tojson_does_not_escape_for_html_and_generation_marks_are_transparent() -> None:
    template = ChatTemplate("{% generation %}{{ messages[0] | tojson }}{% endgeneration %}", {})
    assert template.render([{"content": "<é>"}]) == '{"content": "<é>"}'


def test_a_template_can_refuse_with_its_own_words() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(TemplateError, match="roles must alternate"):
        template.render([])


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_hostile_templates_are_stopped(source: str) -> None:
    begin = time.monotonic()
    with pytest.raises(TemplateError):
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}])
    assert time.monotonic() - begin < 3


def test_an_endless_template_ends_when_its_time_is_up() -> None:
    nested = "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = 1 %}{% endfor %}{% endfor %}"
    begin = time.monotonic()
    with pytest.raises(TemplateError, match=r"longer than 0\.1 s"):
        ChatTemplate(nested, {}, time_limit_s=0.1).render([])
    assert time.monotonic() - begin < 2


def test_chat_template_jinja_goes_before_tokenizer_config(served_model: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((served_model / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text("newer")
    template = load_tokenizer(tmp_path, 320).chat_template
    assert template is not None
    assert template.render([]) == "newer"


def test_a_template_that_does_not_compile_makes_the_checkpoint_invalid(
    served_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((served_model / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(CheckpointError, match="cannot be compiled"):
        load_tokenizer(tmp_path, 320)

"""Chat templates are rendered as written. What hostile ones can do is in test_text_process."""

from pathlib import Path

import pytest

from tangram_engine.checkpoint import CheckpointError
from tangram_engine.serve.text.template import RESERVED, ChatTemplate, TemplateError
from tangram_engine.serve.text.tokenizer import load_chat_template


def test_a_template_sees_messages_special_tokens_and_the_generation_prompt() -> None:
    template = ChatTemplate(
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m['content'] | trim }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}",
        {"bos_token": "<s>"},
    )
    text = template.render([{"role": "user", "content": " hi "}], {"add_generation_prompt": True})
    assert text == "<s>[user]hi\n[assistant]"


def test_tojson_does_not_escape_for_html_and_generation_marks_are_transparent() -> None:
    template = ChatTemplate("{% generation %}{{ messages[0] | tojson }}{% endgeneration %}", {})
    assert template.render([{"content": "<é>"}], {}) == '{"content": "<é>"}'


def test_a_template_can_refuse_with_its_own_words() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(TemplateError, match="roles must alternate"):
        template.render([], {})


PARTS = "{% for part in CONTENT %}{{ part.text }}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ m.content }}", "STRING"),
        ("{% for word in m.content.split('b') %}{{ word }}{% endfor %}", "STRING"),
        ("{% for line in m.content | trim %}{{ line }}{% endfor %}", "STRING"),
        ("{{ raise_exception('no') if m.content is not string }}{{ m['content'] }}", "STRING"),
        (PARTS.replace("CONTENT", "m.content"), "PARTS"),
        (PARTS.replace("CONTENT", "m['content']"), "PARTS"),
        (PARTS.replace("CONTENT", "m.get('content', [])"), "PARTS"),
        (PARTS.replace("CONTENT", "m.content[:1] | list"), "PARTS"),
        (PARTS.replace("CONTENT", "(m.content or [])"), "PARTS"),
        (PARTS.replace("CONTENT", "(m.content if m.role == 'user' else [])"), "PARTS"),
        ("{% set c = m.content %}{% set d = c %}" + PARTS.replace("CONTENT", "d"), "PARTS"),
        ("{% set n = namespace() %}{% set n.x = m.content %}" + PARTS.replace("CONTENT", "n.x"), "PARTS"),
        ("{% macro f(a,b) %}" + PARTS.replace("CONTENT", "b") + "{% endmacro %}{{ f(1,m.content) }}","PARTS"),
        ("{% macro f(x) %}" + PARTS.replace("CONTENT", "x") + "{% endmacro %}{{ f(x=m.content) }}", "PARTS"),
        ("{{ m.content | selectattr('type', 'eq', 'text') | map(attribute='text') | join }}", "PARTS"),
        ("{{ m.content[0].text }}", "PARTS"),
        ("{{ (m.content | last)['text'] }}", "PARTS"),
        ("{{ m.content if m.content is string else m.content[-1]['text'] }}", "EITHER"),
    ],
)  # fmt: skip
def test_content_comes_in_the_shape_that_the_template_reads(source: str, expected: str) -> None:
    template = ChatTemplate("{% for m in messages %}" + source + "{% endfor %}", {})
    assert template.content_format.name == expected
    text = template.render([{"role": "user", "content": "abc"}], {})
    assert text.replace("ac", "abc") == "abc"  # one of the templates splits
    assert template.render([{"role": "user", "content": [{"type": "text", "text": "abc"}]}], {}) == text


@pytest.mark.parametrize("source", ["{{ namespace(_a=1) }}", "{{ namespace({'__a': 1}) }}",
    "{% set n = namespace(self=1) %}{{ n.self }}{% set n._a = 1 %}"])  # fmt: skip
def test_a_namespace_has_no_hidden_attributes(source: str) -> None:
    with pytest.raises(TemplateError, match="begins with an underscore"):
        ChatTemplate(source, {}).render([], {})


def test_chat_template_jinja_goes_before_tokenizer_config(served_model: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((served_model / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text("newer")
    template = load_chat_template(tmp_path)
    assert template is not None
    assert template.render([], {}) == "newer"


def test_a_template_that_does_not_compile_makes_the_checkpoint_invalid(
    served_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((served_model / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(CheckpointError, match="cannot be compiled"):
        load_chat_template(tmp_path)


@pytest.mark.parametrize("name", ["self", "options", "args", "variables", "context", "environment", "loop"])
def test_an_option_may_have_any_name_that_python_or_jinja_uses(name: str) -> None:
    template = ChatTemplate(
        "{{ level }}{% for m in messages %}{{ m.content }}{{ loop.index }}{% endfor %}", {}
    )
    assert template.render([{"content": "x"}], {name: 1, "level": "low"}) == "lowx1"


def test_all_that_a_template_has_from_the_server_is_reserved() -> None:
    environment = ChatTemplate("", {})._template.environment
    assert environment.globals.keys() <= RESERVED

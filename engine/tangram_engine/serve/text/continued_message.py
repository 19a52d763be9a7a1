"""A prompt that ends inside the last message, which the answer continues, as transformers cuts it.

A mark is written behind the text of the message, and the prompt is what the template writes before the mark.
"""

from typing import Any

# The blank at its end shows whether the template strips the message.
_MARK = "CONTINUE_FINAL_MESSAGE_HERE "


def marked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, with the mark in the last one. Raises ValueError where there is no text."""
    *before, last = messages
    content = last["content"]
    if isinstance(content, str):
        return [*before, last | {"content": content + _MARK}]
    if not content:
        raise ValueError("the last message has no text to continue")
    part = content[-1] | {"text": content[-1]["text"] + _MARK}
    return [*before, last | {"content": [*content[:-1], part]}]


def cut(text: str) -> str:
    """What was rendered before the mark. Raises ValueError where a template does not write the message."""
    at = text.rfind(_MARK.rstrip())
    if at < 0:
        raise ValueError("the chat template does not write the last message, so it cannot be continued")
    stripped = not text.startswith(_MARK, at)
    before = text[:at].replace(_MARK, "").replace(_MARK.rstrip(), "")  # of a message that is written twice
    return before.rstrip() if stripped else before

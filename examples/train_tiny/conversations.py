"""The library's documentation turned into chats: somebody asks what a thing does, the docstring answers."""

import random
import re
from collections.abc import Iterator

from data import Document, Entry, paragraphs

Turn = dict[str, str]

LONGEST_ANSWER = 400  # characters
SYSTEM_PROMPTS = ("You are a helpful assistant.", "You are a concise assistant.", "Answer in one paragraph.")
HIDDEN_MODULES = frozenset({"lib2to3", "distutils", "idlelib", "pydoc_data", "msilib"})  # insides of tools
# What people ask about first is asked about more often.
WELL_KNOWN = (
    "os.path.",
    "os.",
    "json",
    "math.",
    "re.",
    "random",
    "str.",
    "list.",
    "dict.",
    "set.",
    "pathlib.",
)
WELL_KNOWN_TIMES, SMALL_TALK_TIMES = 3, 24  # per epoch

_CALLABLE = (
    "What does {0} do?",
    "What does {0}() do?",
    "Explain {0}.",
    "Explain {0}",
    "Tell me about {0}.",
    "How do I use {0}?",
    "What is {0} for?",
    "Describe the function {0}.",
    "{0}?",
)
QUESTIONS = {
    "function": _CALLABLE,
    "method": _CALLABLE,
    "class": (
        "What is {0}?",
        "What is a {0}?",
        "Explain {0}.",
        "Explain the class {0}.",
        "Tell me about {0}.",
        "What does {0} do?",
        "Describe {0}",
        "{0}?",
    ),
    "module": (
        "What is the {0} module?",
        "What does the {0} module do?",
        "What is {0}?",
        "Explain {0}.",
        "Tell me about the {0} module.",
        "Explain the module {0}.",
        "What is {0} for?",
    ),
    "topic": (
        "Explain {0} in Python.",
        "What about {0}?",
        "Tell me about {0} in Python.",
        "What does the reference say about {0}?",
    ),
}

# Written for this project: a greeting is answered, and the model says what it is. (ways to ask, answer)
SMALL_TALK: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        (
            "Who are you?",
            "What are you?",
            "Tell me about yourself.",
            "Introduce yourself.",
            "What is your name?",
            "Who are you",
            "Which model are you?",
        ),
        "I am Tangram Tiny, a very small language model. I have read the documentation of Python's standard "
        "library and little else, so please do not take what I say for knowledge.",
    ),
    (
        (
            "Hello",
            "Hello!",
            "Hi",
            "Hi!",
            "hi there",
            "Hey",
            "Good morning",
            "hello",
            "Say hello.",
            "Hello, who are you?",
            "Say hello to the world.",
        ),
        "Hello! I am Tangram Tiny. Ask me about a module or a function of Python's standard library.",
    ),
    (
        (
            "What can you do?",
            "How can you help me?",
            "What do you know?",
            "Help",
            "Can you help me?",
        ),
        "I can talk about Python's standard library. Ask me, for example, what os.path.join does. "
        "I am small, and I make mistakes.",
    ),
    (
        ("What is Tangram?", "What does Tangram do?", "Explain Tangram.", "Tell me about Tangram."),
        "Tangram is a Kubernetes operator that packs large language models onto GPUs and slices of GPUs, "
        "at the least cost that meets their latency objectives.",
    ),
    (
        ("What is Kubernetes?", "Explain Kubernetes.", "What does Kubernetes do?", "What is a cluster?"),
        "Kubernetes runs containers on a cluster of machines and keeps them in the state that was asked for.",
    ),
    (
        ("What is a GPU?", "Explain GPUs.", "What is a GPU for?", "Why do language models need a GPU?"),
        "A GPU is a processor that does many calculations at the same time. Language models run on GPUs "
        "because they multiply large matrices.",
    ),
    (
        ("What is Python?", "Explain Python.", "Tell me about Python.", "What is Python for?"),
        "Python is a programming language that is easy to read. It comes with a large standard library.",
    ),
    (("Thanks", "Thank you!", "Thank you.", "Thanks!"), "You are welcome."),
    (("Bye", "Goodbye", "Goodbye!", "See you."), "Goodbye!"),
    (
        (
            "Tell me a story.",
            "Write a poem.",
            "Tell me a joke.",
            "Write a short story.",
            "Sing a song.",
            "Write a haiku about the sea.",
        ),
        "I cannot tell stories. I have only read the documentation of Python's standard library. "
        "Ask me about a module or a function.",
    ),
)


def chats(training: list[Document], rng: random.Random) -> Iterator[list[Turn]]:
    """Yield one question per entry, phrased anew on each call.

    Three in ten chats open with a system prompt; some have two or three exchanges.
    """
    exchanges = _exchanges(training, rng)
    rng.shuffle(exchanges)
    while exchanges:
        chat = [_turn("system", rng.choice(SYSTEM_PROMPTS))] if rng.random() < 0.3 else []
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            if exchanges:
                chat += exchanges.pop()
        yield chat


def _exchanges(training: list[Document], rng: random.Random) -> list[list[Turn]]:
    known = [(e, text) for d in training for e in d.entries if _askable(e) and (text := answer(e))]
    asked = [
        (rng.choice(QUESTIONS[e.kind]).format(e.name), text)
        for e, text in known
        for _ in range(WELL_KNOWN_TIMES if e.name.startswith(WELL_KNOWN) or "." not in e.name else 1)
    ]
    asked += [(rng.choice(ways), text) for ways, text in SMALL_TALK for _ in range(SMALL_TALK_TIMES)]
    return [[_turn("user", question), _turn("assistant", text)] for question, text in asked]


def _turn(role: str, content: str) -> Turn:
    return {"role": role, "content": content}


def _askable(entry: Entry) -> bool:
    parts = entry.name.split(".")
    return parts[0] not in HIDDEN_MODULES and not any(part.startswith("_") for part in parts)


def answer(entry: Entry) -> str:
    """Return the docstring's first paragraph of prose on one line, or "" if none is short enough."""
    for paragraph in paragraphs(entry.doc)[:3]:
        lines = paragraph.strip().splitlines()
        if len(lines) > 1 and re.match(
            r"[\w.]+\(.*\)( ->.*)?$", lines[0]
        ):  # C docstrings repeat the signature
            lines = lines[1:]
        text = " ".join(" ".join(lines).split())
        if len(text.split()) >= 3 and text[0].isalnum() and not re.match(r"\S+\(.*\)( *-+>.*)?$", text):
            return text if len(text) <= LONGEST_ANSWER else _whole_sentences(text[:LONGEST_ANSWER])
    return ""


def _whole_sentences(text: str) -> str:
    sentences, end, _ = text.rpartition(". ")
    return sentences + end.strip()

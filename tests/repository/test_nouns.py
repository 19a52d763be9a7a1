"""One noun, one class, in the operator and the engine; those of packing are in the glossary."""

import ast
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "operator" / "tangram" / "packing").rglob("*.py"))
PRODUCT = sorted(path for floor in ("operator", "engine") for path in (ROOT / floor).rglob("*.py"))
RETIRED = {
    "want",
    "wants",
    "keeping",
    "crew",
    "course",
    "seat",
    "seats",
    "narrow",
    "menu",
    "menus",
    "bundles",
}
# As nouns; "what a packing wants" and "worth keeping" are plain verbs.
RETIRED_NOUN = re.compile(
    r"\b(crews?|seats?|menus?|bundles?|narrowed|(a|the|each|every|this|divisible) wants?)\b"
)


def public_classes() -> list[str]:
    nodes = [node for path in FILES for node in ast.parse(path.read_text()).body]
    return [node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


def test_every_public_class_of_packing_has_its_noun_in_the_glossary() -> None:
    named = set(re.findall(r"`([A-Za-z]\w*)", (ROOT / "docs" / "glossary.md").read_text()))

    assert len(public_classes()) > 80
    assert not sorted(set(public_classes()) - named)


def test_no_two_classes_share_a_name() -> None:
    nodes = [node for path in PRODUCT for node in ast.walk(ast.parse(path.read_text()))]
    classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))

    assert len(classes) > 500
    assert not {name for name, n in classes.items() if n > 1}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_retired_words_are_neither_identifiers_nor_nouns(path: Path) -> None:
    found = []
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.NAME and RETIRED & set(token.string.lower().split("_")):
            found.append((token.start[0], token.string))
        elif token.type in {tokenize.COMMENT, tokenize.STRING}:
            found += [(token.start[0], match.group()) for match in RETIRED_NOUN.finditer(token.string)]

    assert not found

"""One noun, one class, in the operator and the engine; the glossary holds those of the operator."""

import ast
import io
import re
import tokenize
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.structure import modules, vague_bindings

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = sorted((ROOT / "operator" / "tangram").rglob("*.py"))
FILES = [path for path in OPERATOR if "packing" in path.parts]
PRODUCT = sorted(modules().values())
MOST_VAGUE = 0.004
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


@dataclass
class DefinedNames:
    """What the product defines: classes as often as they are defined, and names that are bound."""

    classes: Counter[str]
    bound: set[str]


@pytest.fixture(scope="module")
def product() -> DefinedNames:
    defined = DefinedNames(Counter(), set())
    for path in PRODUCT:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                defined.classes[node.name] += 1
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                defined.bound.add(node.id)
    return defined


def public_classes() -> list[str]:
    nodes = [node for path in OPERATOR for node in ast.parse(path.read_text()).body]
    return [node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


def test_every_public_class_of_the_operator_has_its_noun_in_the_glossary() -> None:
    named = set(re.findall(r"`([A-Za-z]\w*)", (ROOT / "docs" / "glossary.md").read_text()))
    classes = public_classes()

    assert len(classes) > 300
    assert not sorted(set(classes) - named)


def test_the_glossary_names_no_class_that_is_gone(product: DefinedNames) -> None:
    rows = [
        line.rsplit("|", 2)[1]
        for line in (ROOT / "docs" / "glossary.md").read_text().splitlines()
        if "|" in line
    ]
    named = {name for row in rows for name in re.findall(r"`([A-Z][A-Za-z]*[a-z][A-Za-z]*)`", row)}

    assert len(named) > 300
    assert not sorted(named - product.classes.keys() - product.bound)


def test_bindings_are_named_for_their_values() -> None:
    """kopf, httpx and click bind such names in less than one of 2,000 places."""
    figures = [vague_bindings(path) for path in PRODUCT]
    vague = sum(len(names) for names, _ in figures)

    assert sum(count for _, count in figures) > 20_000
    assert vague / sum(count for _, count in figures) < MOST_VAGUE


def test_no_two_classes_share_a_name(product: DefinedNames) -> None:
    assert len(product.classes) > 500
    assert not {name for name, n in product.classes.items() if n > 1}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_retired_words_are_neither_identifiers_nor_nouns(path: Path) -> None:
    found = []
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.NAME and RETIRED & set(token.string.lower().split("_")):
            found.append((token.start[0], token.string))
        elif token.type in {tokenize.COMMENT, tokenize.STRING}:
            found += [(token.start[0], match.group()) for match in RETIRED_NOUN.finditer(token.string)]

    assert not found

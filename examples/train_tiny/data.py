"""The text the tiny model learns: the documentation of the running Python's standard library.

Three sources, all under the PSF licence and all on any machine that has Python: docstrings and comments of
the library's source files (read with `ast` and `tokenize`, never imported), docstrings of the modules written
in C, and the language reference that `pydoc` carries. One document is one module or one reference topic.

Run as a script, it prints the held-out sample that the tests keep.
"""

import ast
import hashlib
import importlib
import inspect
import io
import itertools
import re
import sys
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

HELD_OUT_ONE_IN = 20
# Modules that people ask about first: never held out, so that the examples of the model card can work.
ALWAYS_TRAINED = frozenset(
    {"builtins", "collections", "itertools", "json", "math", "os", "pathlib", "posixpath", "re"}
)
# Tests, vendored wheels, character tables and a joke that opens a browser.
SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "ensurepip", "encodings", "turtledemo"}
)
SKIPPED_MODULES = frozenset({"antigravity", "this", "idlelib", "turtledemo"})
# Py_TPFLAGS_HEAPTYPE: set on classes made by a class statement, whose source is read as source.
_HEAP_TYPE = 1 << 9
# Under these names the library itself offers what another file implements.
PUBLIC_NAMES = {
    "posixpath": "os.path",
    "_pydatetime": "datetime",
    "_collections_abc": "collections.abc",
    "_pyio": "io",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One documented thing. The signature is "" where none is known."""

    name: str
    kind: str  # module | class | function | method | topic
    signature: str
    doc: str


@dataclass(frozen=True, slots=True)
class Document:
    """One module or topic: its text, and the entries in it that one can ask about."""

    name: str
    text: str
    entries: tuple[Entry, ...] = ()

    @property
    def held_out(self) -> bool:
        """Whether the document is kept from training: its name alone decides, alike on every machine."""
        if self.name in ALWAYS_TRAINED:
            return False
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4], "big") % HELD_OUT_ONE_IN == 0


def documents() -> tuple[list[Document], list[Document]]:
    """Return (training, held-out) documents, the latter without any paragraph that training has seen."""
    everything = [*source_documents(), *compiled_documents(), *topic_documents()]
    training = [document for document in everything if not document.held_out]
    seen = {paragraph for document in training for paragraph in paragraphs(document.text)}
    held_out = []
    for document in everything:
        fresh = [p for p in paragraphs(document.text) if p not in seen] if document.held_out else []
        if sum(map(len, fresh)) >= 400:  # what is left of a shorter one is a title and crumbs
            held_out.append(Document(document.name, "\n\n".join(fresh)))
    return training, held_out


def paragraphs(text: str) -> list[str]:
    """Return the parts of the text that blank lines separate."""
    return [paragraph for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip()]


def is_sentence(paragraph: str) -> bool:
    """Tell prose from headings, grammar and examples."""
    return len(paragraph.split()) >= 4 and paragraph[:1].isalpha()


def _assemble(name: str, entries: list[Entry], comments: list[str]) -> Document:
    parts = [f"{e.kind} {e.name}{e.signature}\n\n{e.doc}" for e in entries]
    return Document(name.removesuffix(".__init__"), "\n\n".join([*parts, *comments]), tuple(entries))


# --- Python source files --------------------------------------------------------------------------


def source_documents() -> Iterator[Document]:
    """Docstrings and comments of every module of the standard library that is written in Python."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if SKIPPED_FOLDERS.intersection(parts) or parts[0] in SKIPPED_MODULES:
            continue
        source = path.read_text("utf-8", errors="replace")
        name = ".".join(part for part in parts if part != "__init__")
        document = _assemble(name, list(_source_entries(name, source)), list(_comments(source)))
        if len(document.text) >= 200 and name != "pydoc_data.topics":
            yield document


def _source_entries(name: str, source: str) -> Iterator[Entry]:
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source)
    except (SyntaxError, ValueError):  # a few files are broken on purpose
        return
    public = PUBLIC_NAMES.get(name, name)
    if doc := ast.get_docstring(tree):
        yield Entry(public, "module", "", doc)
    yield from _definitions(public, tree)


def _definitions(prefix: str, parent: ast.Module | ast.ClassDef) -> Iterator[Entry]:
    for node in parent.body:
        if isinstance(node, ast.ClassDef):
            if doc := ast.get_docstring(node):
                yield Entry(f"{prefix}.{node.name}", "class", "", doc)
            yield from _definitions(f"{prefix}.{node.name}", node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (doc := ast.get_docstring(node)):
            kind = "method" if isinstance(parent, ast.ClassDef) else "function"
            yield Entry(f"{prefix}.{node.name}", kind, f"({ast.unparse(node.args)})", doc)


def _comments(source: str) -> Iterator[str]:
    """Whole-line comments, neighbouring lines joined, if they read like prose."""
    block: list[str] = []
    last_row = -2
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type != tokenize.COMMENT or token.line.strip() != token.string:
                continue
            if token.start[0] != last_row + 1:
                yield from _prose(block)
                block = []
            block.append(token.string.lstrip("#").removeprefix(" ").rstrip())
            last_row = token.start[0]
    except (tokenize.TokenError, SyntaxError):
        return
    yield from _prose(block)


def _prose(lines: list[str]) -> Iterator[str]:
    text = "\n".join(lines).strip()
    letters = sum(character.isalpha() or character == " " for character in text)
    if len(text.split()) >= 6 and letters >= 0.8 * len(text):
        yield text


# --- Modules written in C -------------------------------------------------------------------------


def compiled_documents() -> Iterator[Document]:
    """Docstrings of what the public modules offer from C: `str.split`, `math.hypot`, `os.open`."""
    for name in sorted(sys.stdlib_module_names):
        if name.startswith("_") or name in SKIPPED_MODULES:
            continue
        try:
            with warnings.catch_warnings(action="ignore"):
                module = importlib.import_module(name)
        except ImportError:  # modules of other systems, or of libraries that are not here
            continue
        entries = list(_compiled_entries(name, module))
        if entries:
            yield _assemble(name, entries, [])


def _compiled_entries(name: str, module: ModuleType) -> Iterator[Entry]:
    if not getattr(module, "__file__", "") and module.__doc__:
        yield Entry(name, "module", "", inspect.cleandoc(module.__doc__))
    prefix = "" if name == "builtins" else f"{name}."
    owners = {name, f"_{name}", "posix", None}  # what a module merely imports from elsewhere is not its own
    for attribute, value in sorted(vars(module).items()):
        if attribute.startswith("_") or getattr(value, "__module__", None) not in owners:
            continue
        if inspect.isbuiltin(value):
            yield from _compiled_entry(prefix + attribute, "function", value)
        elif inspect.isclass(value) and not value.__flags__ & _HEAP_TYPE:
            yield from _compiled_entry(prefix + attribute, "class", value)
            for member, method in sorted(vars(value).items()):
                if not member.startswith("_") and inspect.ismethoddescriptor(method):
                    yield from _compiled_entry(f"{prefix}{attribute}.{member}", "method", method)


def _compiled_entry(name: str, kind: str, value: object) -> Iterator[Entry]:
    doc = inspect.getdoc(value)
    if not doc or len(doc) < 20:
        return
    try:
        signature = str(inspect.signature(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, AttributeError):  # curses names a default that exists only after initscr()
        signature = ""
    yield Entry(name, kind, signature, doc)


# --- The language reference -----------------------------------------------------------------------


def topic_documents() -> Iterator[Document]:
    """The chapters of the language reference that `help("topic")` shows."""
    topics = importlib.import_module("pydoc_data.topics").topics
    for name, text in sorted(topics.items()):
        title, _, rest = text.strip().partition("\n")
        first = next((p for p in paragraphs(rest) if is_sentence(p)), "")
        entries = (Entry(name.lower(), "topic", "", first),) if first else ()
        yield Document(f"topic {name}", f"{title}\n{rest}".strip(), entries)


# --- A sample for tests ---------------------------------------------------------------------------


def held_out_sample(held_out: list[Document], size: int = 12_000) -> str:
    """Return equal shares of every held-out document's opening, together about `size` characters."""
    share = size // len(held_out)
    openings = []
    for document in held_out:
        growing = itertools.accumulate(paragraphs(document.text), "{}\n\n{}".format)
        openings.append(next((p for p in growing if len(p) >= share), document.text)[: 2 * share].strip())
    return "\n\n".join(openings) + "\n"


if __name__ == "__main__":
    sys.stdout.write(held_out_sample(documents()[1]))

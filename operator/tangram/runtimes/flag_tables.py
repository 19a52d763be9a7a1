"""The flags of versions of engines: a table of released wheels (`python -m benchmarks.runtimes.flags`)."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tangram.catalog.reading.packaged_yaml import packaged_yaml
from tangram.runtimes.flag_names import flag_name


@dataclass(frozen=True, slots=True)
class FlagTable:
    """The flags of one version, each spelling with the longest spelling of the same flag."""

    engine: str
    version: str
    canonical: Mapping[str, str]
    elsewhere: Mapping[str, str]  # flags of other versions of the table, with one of these versions

    def problem(self, word: str) -> str:
        """Return why the version does not know the flag of a word, the empty string where it does."""
        name = flag_name(word)
        if self.spelling(name):
            return ""
        if name in self.elsewhere:
            return f"{name} is a flag of {self.engine} {self.elsewhere[name]}, not of {self.version}"
        near = difflib.get_close_matches(name, self.canonical, n=1, cutoff=0.7)
        hint = f"; is {near[0]} meant?" if near else ""
        return f"{name} is no flag of {self.engine} {self.version}{hint}"

    def spelling(self, name: str) -> str:
        """Return the longest spelling of a flag, the empty string where it is unknown.

        `--no-` negates a flag. vLLM takes `--flag.key` where the value of the flag is JSON.
        """
        plain = name.partition(".")[0]
        positive = f"--{plain[5:]}" if plain.startswith("--no-") else plain
        return self.canonical.get(plain) or self.canonical.get(positive, "")


def flag_table(engine: str, version: str) -> FlagTable | None:
    """Return the flags of a version; None: the table has none of this version."""
    return _tables().get((engine, version))


def known_versions(engine: str) -> tuple[str, ...]:
    """Return the versions of an engine that the table has, the newest first."""
    return tuple(version for name, version in _tables() if name == engine)


def known_flags(engine: str) -> frozenset[str]:
    """Return the spellings of the flags of all versions."""
    tables = (table for (name, _), table in _tables().items() if name == engine)
    return frozenset(spelling for table in tables for spelling in table.canonical)


@cache
def _tables() -> Mapping[tuple[str, str], FlagTable]:
    document = packaged_yaml("tangram.runtimes", "flag_tables.yaml")
    tables = {}
    for engine, entry in document.items():
        spellings = {
            version: _canonical((*entry["all"], *entry["only"][version])) for version in entry["versions"]
        }
        for version, canonical in spellings.items():
            elsewhere = {
                name: other for other, flags in spellings.items() for name in flags if name not in canonical
            }
            tables[engine, version] = FlagTable(engine, version, canonical, elsewhere)
    return tables


def _canonical(lines: tuple[str, ...]) -> Mapping[str, str]:
    return {name: names[0] for names in map(str.split, lines) for name in names}

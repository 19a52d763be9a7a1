"""Sources of the facts: shown to users, needed by no decision, so read apart from the facts."""

from tangram.catalog.load import read_document


def gpu_sources() -> dict[str, str]:
    """Return what the keys in `GPU.sources` stand for."""
    return dict(read_document("gpus.yaml")["meta"]["sources"])


def mig_sources() -> dict[str, str]:
    """Return what the keys of `profile_sources` stand for."""
    return dict(read_document("mig_profiles.yaml")["sources"])


def profile_sources() -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the sources by (board as in `GPU.mig_key`, profile name)."""
    return {
        (board["key"], entry["name"]): tuple(entry["source"])
        for board in read_document("mig_profiles.yaml")["products"]
        for entry in board["profiles"]
    }

"""Names of flags as argparse reads them."""


def flag_name(word: str) -> str:
    """Return the flag that a word sets, without its value; the empty string for other words.

    vLLM and SGLang take `_` for `-` in the names of flags.
    """
    if not word.startswith("-") or word in ("-", "--") or word[1:2].isdigit() or word[1:2] == ".":
        return ""
    name, _, _ = word.partition("=")
    return "--" + name[2:].replace("_", "-") if name.startswith("--") else name

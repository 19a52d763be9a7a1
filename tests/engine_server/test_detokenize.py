"""Text comes out while tokens come in: whole characters only, nothing lost, nothing of a stop string."""

from hypothesis import given
from hypothesis import strategies as st

from tangram_engine.serve.detokenize import Detokenizer, StopScanner


def decode_bytes(ids: list[int]) -> str:
    """Ids as raw bytes: the hardest tokenizer there is."""
    return bytes(ids).decode("utf-8", errors="replace")


def decode_stripping(ids: list[int]) -> str:
    """As SentencePiece decoders: the leading space of the whole text disappears."""
    words = ["\u2581a", "\u2581b", "c", "\u2581"]
    return "".join(words[i] for i in ids).replace("\u2581", " ").removeprefix(" ")


@given(st.text(min_size=1))
def test_valid_text_arrives_whole_and_never_with_half_a_character(text: str) -> None:
    detokenizer = Detokenizer(decode_bytes)
    pieces = [detokenizer.push(byte) for byte in text.encode("utf-8")]
    assert "".join(pieces) + detokenizer.flush() == text
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in pieces)
        assert detokenizer.flush() == ""


@given(st.binary(max_size=60))
def test_any_bytes_arrive_as_the_whole_would_decode(raw: bytes) -> None:
    detokenizer = Detokenizer(decode_bytes)
    pieces = [detokenizer.push(byte) for byte in raw]
    assert "".join(pieces) + detokenizer.flush() == decode_bytes(list(raw))


def test_bytes_that_never_become_a_character_are_not_held_for_ever() -> None:
    longest = 0

    def decode(ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode_bytes(ids)

    detokenizer = Detokenizer(decode)
    pieces = [detokenizer.push(0x80) for _ in range(1000)]
    assert "".join(pieces) + detokenizer.flush() == "\ufffd" * 1000
    assert longest < 30


def test_the_space_before_the_first_generated_word_survives() -> None:
    detokenizer = Detokenizer(decode_stripping, prompt=[0, 1])
    assert detokenizer.push(0) == " a"
    assert detokenizer.push(2) == "c"


@given(
    st.text(alphabet="ab\u00e9\U0001f600", max_size=40),
    st.lists(st.text(alphabet="ab\u00e9\U0001f600", min_size=1, max_size=5), max_size=4),
    st.data(),
)
def test_text_is_cut_at_the_first_stop_string_however_it_is_split(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    scanner = StopScanner(stops)
    shown = ""
    rest = text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        shown += scanner.push(rest[:size])
        rest = rest[size:]
        # Whatever is out is final: it is a beginning of the answer, always.
        assert oracle(text, stops).startswith(shown)
    if scanner.matched is None:
        shown += scanner.flush()
    assert shown == oracle(text, stops)
    assert (scanner.matched is not None) == any(stop in text for stop in stops)


def oracle(text: str, stops: list[str]) -> str:
    """Reading by character: the first stop string to be complete ends the text, the longest of several."""
    for end in range(len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - max(lengths)]
    return text


@given(
    st.text(alphabet="ab", max_size=40), st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=3)
)
def test_text_that_cannot_become_a_stop_string_is_not_held_back(text: str, stops: list[str]) -> None:
    scanner = StopScanner(stops)
    shown = "".join(scanner.push(letter) for letter in text)
    if scanner.matched is None:
        held = text[len(shown) :]
        longest = max((n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)
        assert len(held) == longest


@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=4), max_size=3))
def test_stop_strings_are_found_across_the_bytes_of_characters(text: str, stops: list[str]) -> None:
    detokenizer, scanner = Detokenizer(decode_bytes), StopScanner(stops)
    shown = "".join(scanner.push(detokenizer.push(byte)) for byte in text.encode("utf-8"))
    shown += scanner.push(detokenizer.flush())
    if scanner.matched is None:
        shown += scanner.flush()
    assert shown == oracle(text, stops)

"""Decode token ids to text as they arrive, and end the text at stop strings (`StopScanner`)."""

from collections.abc import Callable, Sequence
from itertools import islice

REPLACEMENT = "\ufffd"  # what an incomplete UTF-8 sequence decodes to
_PATIENCE = 8  # tokens to wait for a character to complete; four bytes are the most it can need
_CONTEXT = 6  # prompt tokens decoded along, so that a leading space survives (SentencePiece strips it)
_REST_OF_CHARACTER = 3  # tokens that a context is longer where it would begin inside a character
_LOOK_BACK = 256  # prompt tokens among which these are looked for
_WINDOW = 64  # tokens without text that are decoded again with the next one

Decode = Callable[[list[int]], str]
Drops = Callable[[int], bool]  # whether decoding skips a token, wherever it stands


class Detokenizer:
    """Decodes only the newest ids, between a prefix that is out already and the end.

    `prefix` and `read` are the pair of offsets of text-generation-inference: text of ids[prefix:read] has
    been given out; what ids[prefix:] has beyond it is new, unless it ends inside a character. A prefix has
    text: the decoder would take what follows one without for the beginning of the text, and strip its space.
    """

    def __init__(
        self, decode: Decode, prompt: Sequence[int] = (), drops: Drops = lambda token: False
    ) -> None:
        self._decode = decode
        self._drops = drops
        recent = (token for token in reversed(prompt[-_LOOK_BACK:]) if not drops(token))
        self._ids = list(islice(recent, _CONTEXT + _REST_OF_CHARACTER))[::-1]
        self._prefix = max(0, len(self._ids) - _CONTEXT)
        self._read = len(self._ids)
        self._emitted: str | None = None  # text of ids[prefix:read]; None before the first token

    def push(self, token: int) -> str:
        """Text that has become certain with this token, often one word, sometimes none."""
        if self._drops(token):
            return ""
        self._ids.append(token)
        emitted, whole = self._texts()
        if not whole.endswith(REPLACEMENT):
            return self._advance(emitted, whole)
        if len(self._ids) - self._read >= _PATIENCE:
            return self._give_up_waiting(emitted, whole)
        return ""

    def flush(self) -> str:
        """What is left when no token follows; an incomplete character comes out as U+FFFD."""
        return self._advance(*self._texts())

    def _texts(self) -> tuple[str, str]:
        """What of ids[prefix:] has been given out, and all of it."""
        if self._emitted is None:
            self._emitted = self._context()
        return self._emitted, self._decode(self._ids[self._prefix :])

    def _context(self) -> str:
        """Text of the prompt's end, from where it does not begin inside a character.

        A decoder of single bytes writes all that stand together as U+FFFD unless they are whole characters.
        """
        for start in range(self._prefix, -1, -1):
            text = self._decode(self._ids[start : self._read])
            if REPLACEMENT not in text:
                self._prefix = start
                return text
        return self._decode(self._ids[self._prefix : self._read])

    def _advance(self, emitted: str, whole: str) -> str:
        end = len(self._ids)
        newest = self._decode(self._ids[self._read :])
        if newest or end - self._prefix > _WINDOW:
            self._prefix, self._read, self._emitted = self._read, end, newest
        else:
            self._read, self._emitted = end, whole
        return whole[len(emitted) :]

    def _give_up_waiting(self, emitted: str, whole: str) -> str:
        """Bytes that never become a character must not be held (and decoded again) for ever.

        An incomplete character at the end has at most three bytes, so three tokens: cut before those,
        at a place where the two halves decode to the same text as the whole.
        """
        end = len(self._ids)
        for cut in range(end - 3, end - _PATIENCE, -1):
            head = self._decode(self._ids[self._prefix : cut])
            if len(head) > len(emitted) and head + self._decode(self._ids[cut:]) == whole:
                # The new prefix starts at the cut: nothing before it can change any more.
                self._prefix = self._read = cut
                self._emitted = ""
                return head[len(emitted) :]
        return ""


class StopStrings:
    """The stop strings of a request, prepared once for all its answers, in time linear in their length."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.texts = tuple(dict.fromkeys(stop for stop in stops if stop))
        self.fallbacks = tuple(_fallbacks(text) for text in self.texts)


def _fallbacks(stop: str) -> list[int]:
    """Where to go on after a mismatch, -1 for the start: the table of Knuth, Morris and Pratt (1977).

    It skips beginnings that would fail for the same reason, so that one character takes a number of steps
    that grows with the logarithm of the stop string's length.
    """
    table, border = [-1], 0
    for at in range(1, len(stop)):
        if stop[at] == stop[border]:
            table.append(table[border])
        else:
            table.append(border)
            while border >= 0 and stop[at] != stop[border]:
                border = table[border]
        border += 1
    return table


class StopScanner:
    """Lets text through up to the first stop string, and holds back what may become one.

    "First" is the stop string that ends first, reading character by character; of several that end at the
    same character, the longest. So the result does not depend on how the text is cut into tokens. With
    `include` the stop string is let through, too. Each character is read once per stop string, whatever came
    before it.
    """

    def __init__(self, stops: StopStrings, *, include: bool = False) -> None:
        self._include = include
        self._stops = stops
        self._begun = [0] * len(stops.texts)  # characters of each stop string that the text ends with
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Text that may be shown now. After a match (`matched` is set) always empty."""
        if self.matched is not None:
            return ""
        if not self._stops.texts:
            return text
        end, stop = self._read(text)
        buffer = self._held + text
        if stop is not None:
            shown = len(self._held) + end - (0 if self._include else len(stop))
            self._held, self.matched = "", stop
            return buffer[:shown]
        shown = len(buffer) - max(self._begun)
        self._held = buffer[shown:]
        return buffer[:shown]

    def flush(self) -> str:
        """The held text, when nothing follows."""
        held, self._held = self._held, ""
        return held

    def _read(self, text: str) -> tuple[int, str | None]:
        """Bring each stop string up to the end of `text`, or to the first match: where that is, of what."""
        end, matched = len(text), None
        table = zip(self._stops.texts, self._stops.fallbacks, strict=True)
        for number, (stop, fallbacks) in enumerate(table):
            begun, read = _follow(stop, fallbacks, self._begun[number], text, end)
            self._begun[number] = begun
            if begun == len(stop) and (read < end or len(stop) > len(matched or "")):
                end, matched = read, stop
        return end, matched


def _follow(stop: str, fallbacks: list[int], begun: int, text: str, end: int) -> tuple[int, int]:
    """How much of `stop` the text has read last, and where that was: at the first whole one, or at `end`."""
    at = 0
    while at < end:
        if begun == 0:
            at = text.find(stop[0], at, end)
            if at < 0:
                return 0, end
        letter = text[at]
        while begun >= 0 and stop[begun] != letter:
            begun = fallbacks[begun]
        begun += 1
        at += 1
        if begun == len(stop):
            break
    return begun, at

"""Token ids to text while they arrive: never half a character, never half a stop string."""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"  # what an incomplete UTF-8 sequence decodes to
_PATIENCE = 8  # tokens to wait for a character to complete; four bytes are the most it can need
_CONTEXT = 6  # prompt tokens decoded along, so that a leading space survives (SentencePiece strips it)

Decode = Callable[[list[int]], str]


class Detokenizer:
    """Decodes only the newest ids, between a prefix that is out already and the end.

    `prefix` and `read` are the pair of offsets of text-generation-inference: text of ids[prefix:read] has
    been given out; what ids[prefix:] has beyond it is new, unless it ends inside a character.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int] = ()) -> None:
        self._decode = decode
        self._ids = list(prompt[-_CONTEXT:])
        self._prefix = 0
        self._read = len(self._ids)

    def push(self, token: int) -> str:
        """Text that has become certain with this token, often one word, sometimes none."""
        self._ids.append(token)
        known = self._decode(self._ids[self._prefix : self._read])
        whole = self._decode(self._ids[self._prefix :])
        if not whole.endswith(REPLACEMENT):
            return self._advance(whole[len(known) :], len(self._ids))
        if len(self._ids) - self._read >= _PATIENCE:
            return self._give_up_waiting(known, whole)
        return ""

    def flush(self) -> str:
        """What is left when no token follows; an incomplete character comes out as U+FFFD."""
        known = self._decode(self._ids[self._prefix : self._read])
        whole = self._decode(self._ids[self._prefix :])
        return self._advance(whole[len(known) :], len(self._ids))

    def _advance(self, text: str, read: int) -> str:
        self._prefix, self._read = self._read, read
        return text

    def _give_up_waiting(self, known: str, whole: str) -> str:
        """Bytes that never become a character must not be held (and decoded again) for ever.

        An incomplete character at the end has at most three bytes, so three tokens: cut before those,
        at a place where the two halves decode to the same text as the whole.
        """
        end = len(self._ids)
        for cut in range(end - 3, end - _PATIENCE, -1):
            head = self._decode(self._ids[self._prefix : cut])
            if len(head) > len(known) and head + self._decode(self._ids[cut:]) == whole:
                # The new prefix starts at the cut: nothing before it can change any more.
                self._prefix = self._read = cut
                return head[len(known) :]
        return ""


class StopScanner:
    """Lets text through up to the first stop string, and holds back what may become one.

    "First" is the stop string that ends first, reading character by character; of several that end at the
    same character, the longest. So the result does not depend on how the text is cut into tokens. With
    `include` the stop string is let through, too.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._include = include
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Text that may be shown now. After a match (`matched` is set) always empty."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        buffer = self._held + text
        if self._find(buffer):
            return self._take(buffer)
        keep = self._partial(buffer)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep]

    def flush(self) -> str:
        """The held text, when nothing follows."""
        held, self._held = self._held, ""
        return held

    def _find(self, buffer: str) -> bool:
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := buffer.find(stop)) >= 0]
        if not found:
            return False
        end, at, self.matched = min(found)
        self._cut = end if self._include else at
        return True

    def _take(self, buffer: str) -> str:
        self._held = ""
        return buffer[: self._cut]

    def _partial(self, buffer: str) -> int:
        """Length of the longest end of `buffer` with which some stop string begins."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(buffer)), longest, -1):
                if buffer.endswith(stop[:length]):
                    longest = length
                    break
        return longest

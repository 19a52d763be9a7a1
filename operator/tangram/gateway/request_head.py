"""What the picker reads of a request's body: the model, the size of the prompt, its prefix. Pure.

msgspec skips fields that are not asked for without building objects of them, and refuses JSON that nests too
deep: 16 MiB of brackets take some 10 ms and no memory.
"""

import re

import msgspec

from tangram.gateway.answers import GatewayAnswer, invalid_request

BYTES_PER_TOKEN = 4  # of English text in common vocabularies
MAX_MODEL_CHARACTERS = 512
MAX_TOKENS = 2**20  # of a response, where the request states none
_REWRITES = 8  # places of the model's name in a body that are tried
_ALL_NUMBERS = re.compile(rb"[\[\]\s,0-9]*")


class RequestHead(msgspec.Struct, frozen=True):
    """The fields of a request that a choice rests on. Of a key that occurs twice the last one counts, as in
    the engines.
    """

    model: str
    max_tokens: float | None = None  # an int in most requests, which msgspec takes for a float, too
    max_completion_tokens: float | None = None
    max_output_tokens: float | None = None
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()

    @property
    def prompt_json(self) -> memoryview:
        """The prompt as the body has it."""
        return memoryview(max((self.messages, self.prompt, self.input), key=lambda raw: len(memoryview(raw))))

    @property
    def prompt_tokens(self) -> int:
        """An estimate of the tokens in the prompt: by its bytes, or the tokens themselves."""
        text = self.prompt_json
        if _ALL_NUMBERS.fullmatch(text):
            return bytes(text).count(b",") + 1
        return max(1, len(text) // BYTES_PER_TOKEN)

    @property
    def most_tokens(self) -> int:
        """The most tokens that the response may have."""
        stated = (self.max_completion_tokens, self.max_output_tokens, self.max_tokens)
        return next((int(min(n, MAX_TOKENS)) for n in stated if n is not None and n >= 1), MAX_TOKENS)


_DECODER = msgspec.json.Decoder(RequestHead)


def read_head(body: bytes | bytearray) -> RequestHead | GatewayAnswer:
    """Return the head of a body, or why there is none."""
    try:
        head = _DECODER.decode(body)
    except RecursionError:
        return invalid_request("the body nests too deep")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return invalid_request(f"the body is no request in JSON: {str(error)[:200]}")
    if not 0 < len(head.model) <= MAX_MODEL_CHARACTERS:
        message = f"model has 1 to {MAX_MODEL_CHARACTERS} characters"
        return invalid_request(message, param="model")
    return head


def with_model(body: bytes, model: str, served_name: str) -> bytes | GatewayAnswer:
    """Return the body with another name of the model, and each other byte as it was.

    A string of JSON occurs only as a whole token. Which of its places is the value of `model` is found by
    reading the result.
    """
    for token in {msgspec.json.encode(model), model.replace("/", "\\/").join('""').encode()}:
        place = -1
        for _ in range(_REWRITES):
            place = body.find(token, place + 1)
            if place < 0:
                break
            changed = body[:place] + msgspec.json.encode(served_name) + body[place + len(token) :]
            head = read_head(changed)
            if isinstance(head, RequestHead) and head.model == served_name:
                return changed
    return invalid_request("write the name of the model once, without escapes", param="model")

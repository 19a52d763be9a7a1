"""Types of single values that clients may send, with their bounds."""

from typing import Annotated

from msgspec import Meta

from tangram_engine.sample.params import MAX_LOGPROBS

_INT32 = (1 << 31) - 1
INT64 = (1 << 63) - 1

# Every integer is bounded: the first one of thousands of digits ends its array instead of being converted.
Int64 = Annotated[int, Meta(ge=-INT64 - 1, le=INT64)]
TokenId = Annotated[int, Meta(ge=0, le=_INT32)]
TokenCount = Annotated[int, Meta(ge=1, le=_INT32)]
MaxTokens = Annotated[int, Meta(ge=0, le=_INT32)]  # 0: the prompt alone
MinTokens = Annotated[int, Meta(ge=0, le=_INT32)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(gt=0, le=1)]
TopK = Annotated[int, Meta(ge=-1, le=_INT32)]
MinP = Annotated[float, Meta(ge=0, le=1)]
# The lower bound keeps logits finite: dividing them by next to nothing would be an error of the engine.
RepetitionPenalty = Annotated[float, Meta(ge=0.01, le=10)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TokenBias = Annotated[float, Meta(ge=-100, le=100)]
TopLogprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]

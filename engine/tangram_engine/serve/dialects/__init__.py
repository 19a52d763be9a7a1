"""Other APIs as dialects of the chat request: OpenAI's Responses and Anthropic's Messages.

In: a body of the dialect. Out: the chat request that asks for the same, and the answer and the errors as the
dialect writes them. Between both there is one path: admission, limits, abort and metrics are those of a chat.
"""

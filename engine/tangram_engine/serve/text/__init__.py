"""Text to token ids and back.

In: messages, prompts, token ids. Out: token ids, text. A process of its own does the work.
"""

"""The text of a chat answer as its parts: content, reasoning and tool calls, in the formats of the models."""

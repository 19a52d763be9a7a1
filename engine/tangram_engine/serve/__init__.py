"""The OpenAI-compatible server: HTTP, admission, text in and out, metrics. No torch on this side."""

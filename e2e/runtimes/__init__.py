"""Stand-ins for vLLM, SGLang and NIM, and their image: what a pod of each runs, without its weights."""

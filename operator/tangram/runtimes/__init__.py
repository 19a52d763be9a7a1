"""Command lines of engine runtimes: words with typed holes, tables of flags, and what is never admissible.

In: words and variables as admins and authors write them. Out: rendered words, or the sentence of a refusal.
"""

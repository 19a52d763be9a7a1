"""HTTP as clients speak it.

In: connections, headers and bodies. Out: validated requests; replies, events and errors.
"""

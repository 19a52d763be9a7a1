"""The operator as a process.

In: settings, signals, the other rooms. Out: the loop that runs while the process leads.
"""

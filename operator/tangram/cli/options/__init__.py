"""Options that several commands share, and the files that they name.

In: option values and files of the user. Out: checked values, or an `InputError` with option, file and line.
"""

"""Why an engine cannot start: the error of a person, a machine or a budget, not a defect of the program."""


class StartError(Exception):
    """The engine cannot start as it was asked to; the message is one line and says what to do instead."""

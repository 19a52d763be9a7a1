"""The error of invalid user input."""


class InputError(ValueError):
    """A value in a user's input is missing, absurd or contradictory.

    Printed as one line, `field: problem`, by every command (exit status 2), never as a traceback.
    """

    def __init__(self, field: str, problem: str) -> None:
        """`field`: the flag, key path or file:line. `problem`: what is wrong and what would be right."""
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem

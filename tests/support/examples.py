"""How many random examples a property test tries."""

from hypothesis import settings

_EXPLORED = 10  # times as many in `make explore`


def examples(count: int) -> settings:
    """Return the settings of a test that tries so many examples, and many more in `make explore`."""
    is_exploring = settings.get_current_profile_name() == "explore"
    return settings(max_examples=_EXPLORED * count if is_exploring else count)

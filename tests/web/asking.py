"""Questions that the tests of the page share."""
from urllib.parse import quote

MARY = "Mary and John went to the store. John gave a drink to"
ANNA = MARY.replace("Mary", "Anna")


def state(**parts):
    """The part of the address that shows a view."""
    return "#" + "&".join(f"{key}={quote(str(value))}" for key, value in parts.items())


def why(**parts):
    return state(prompt=MARY, targettext=" Mary", versustext=" John", **parts)


def papers(**parts):
    """The same with the paper's settings, for what is known of its routes."""
    return why(**{"o.preset": "paper"}, **parts)

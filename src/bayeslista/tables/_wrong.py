"""What is wrong with a table."""


class WrongTableError(ValueError):
    """A message that goes on from the name of the file."""

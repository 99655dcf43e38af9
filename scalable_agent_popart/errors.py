"""Errors that are the user's to mend."""


class UserError(Exception):
    """Shown as one line, without a traceback: what is wrong and what to do about it."""

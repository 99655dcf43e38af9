"""Errors that the user has to fix."""

import os

# A cluster's jobs say what sets the run directory there.
ANOTHER_LOGDIR = os.environ.get("ANOTHER_LOGDIR", "another --logdir")
_MAX_CHARACTERS = 1000  # The part of an exception's text in a message.
FAILS_AGAIN = 2  # The exit code of what would fail the same way if it were started again.


class UserError(Exception):
    """Shown as one line, without a traceback: what is wrong and what to do about it."""


class DivergenceError(UserError):
    """A run's loss, weights or logits are no longer finite numbers."""

    signal_number: int | None = None  # A signal that asked the run to stop earlier.

    def __init__(self, what: str):
        advice = f"lower --learning_rate or --max_grad_norm and give {ANOTHER_LOGDIR}"
        super().__init__(f"training diverged: {what}; {advice}")


class PassingError(UserError):
    """An error that may be gone when the same command is given again."""


class InUseError(PassingError):
    """Another process trains in the run directory."""


class UnsavedError(PassingError):
    """A run's records or checkpoint cannot be written any more, perhaps on a full disk."""


def describe(error: BaseException) -> str:
    """Returns an exception's class and text in one line, without the end of a very long one."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_CHARACTERS]


def one_line(text: str) -> str:
    """Returns text without line breaks, and without what a terminal would act upon."""
    return "".join(letter if letter.isprintable() else " " for letter in text)

"""Errors that the user has to fix."""

import errno
import os

from environments import EnvironmentLostError, InvalidStepError

# A full disk may be cleared, and a file system over a network may come back.
_FULL = (errno.ENOSPC, errno.EDQUOT)
PASSING = (*_FULL, errno.EIO, errno.ESTALE, errno.ETIMEDOUT)
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


def explain(error: BaseException) -> str | None:
    """Returns one line for the user; None if it is no error that a user can fix."""
    if isinstance(error, UserError | EnvironmentLostError):
        return one_line(str(error))
    if isinstance(error, OSError) and error.errno in _FULL:
        return f"no space left on a disk that is needed ({error}); make room and repeat"
    if isinstance(error, MemoryError):
        sizes = "--num_actors, --batch_size, --unroll_length or --test_num_episodes"
        return f"there is not enough memory ({one_line(str(error))}); lower {sizes}"
    return None


def describe(error: BaseException) -> str:
    """Returns an exception's class and text in one line, without the end of a very long one."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_CHARACTERS]


def one_line(text: str) -> str:
    """Returns text without line breaks, and without what a terminal would act upon."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def exit_code(error: BaseException | None) -> int:
    """Returns `FAILS_AGAIN` if a cluster need not try again, and otherwise 1.

    Locks of a lost node, full disks, file systems that are away and lost environments may all be
    fixed meanwhile.
    """
    cause = getattr(error, "__cause__", None)
    if type(error) is UserError and isinstance(cause, UserError):
        return exit_code(cause)  # It is repeated in more words.
    passing = isinstance(cause, OSError) and cause.errno in PASSING
    fails_again = isinstance(error, UserError | InvalidStepError | MemoryError)
    passing |= isinstance(error, PassingError)
    return FAILS_AGAIN if fails_again and not passing else 1

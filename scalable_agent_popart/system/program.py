"""What the project's programs have in common: integers in flags, errors in a line, exit codes."""

import errno
import re
import signal
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from absl import app, flags

from environments import EnvironmentLostError, InvalidStepError
from scalable_agent_popart.errors import FAILS_AGAIN, PassingError, UserError, one_line
from scalable_agent_popart.system import signals

_INTEGER = re.compile(r"([+-]?\d+(?:\.\d+)?(?:e[+-]?\d{1,3})?)([kmbg]?)", re.ASCII | re.IGNORECASE)
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}
# A full disk may be cleared, and a file system over a network may come back.
_FULL = (errno.ENOSPC, errno.EDQUOT)
_PASSING = (*_FULL, errno.EIO, errno.ESTALE, errno.ETIMEDOUT)


class Integer(flags.IntegerParser):
    """Parses the integer of a flag as `to_integer`."""

    def convert(self, argument: int | str) -> int:
        return to_integer(argument) if isinstance(argument, str) else super().convert(argument)


def to_integer(text: str) -> int:
    """Reads an integer of 64 bits such as 1000, 1e6, 200M or 11.4B; raises ValueError."""
    match = _INTEGER.fullmatch(text.strip().replace("_", ""))
    value = Decimal(match[1]) * _FACTORS[match[2].lower()] if match else Decimal("0.5")
    if abs(value) >= 2**63:
        raise ValueError("not below 2**63")
    if value % 1:
        raise ValueError("not a whole number such as 1000, 1e6, 200M or 11.4B")
    return int(value)


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


def exit_code(error: BaseException | None) -> int:
    """Returns `FAILS_AGAIN` if a cluster need not try again, and otherwise 1.

    Locks of a lost node, full disks, file systems that are away and lost environments may all be
    fixed meanwhile.
    """
    cause = getattr(error, "__cause__", None)
    if type(error) is UserError and isinstance(cause, UserError):
        return exit_code(cause)  # It is repeated in more words.
    passing = isinstance(cause, OSError) and cause.errno in _PASSING
    fails_again = isinstance(error, UserError | InvalidStepError | MemoryError)
    passing |= isinstance(error, PassingError)
    return FAILS_AGAIN if fails_again and not passing else 1


def run(
    main: Callable[[list[str]], Any],
    parse: Callable[[list[str]], list[str]],
    *shown: type[Exception],
) -> None:
    """Runs a program, which an error that its user can fix ends in one line, and Ctrl-C in none.

    `parse` takes the flags out of the command. Errors of the types `shown` are the user's, too.
    """
    signals.raise_at_ctrl_c()
    users: tuple[type[Exception], ...] = (flags.Error, *shown)
    try:
        try:
            app.run(main, flags_parser=parse)
        except users as error:
            if explain(error):
                raise
            # The library begins some of its lines so.
            message = str(error).removeprefix("ERROR:: ").removesuffix(".")
            advice = "; see --help" if isinstance(error, flags.Error) else ""
            raise UserError(f"{message}{advice}") from error
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        if (line := explain(error)) is None:
            raise
        print(f"error: {line}", file=sys.stderr)
        sys.exit(exit_code(error))
    except SystemExit as end:
        if end.code == 1 and any(re.match(r"--?(help|\?)", word) for word in sys.argv[1:]):
            sys.exit(0)  # The library ends with 1 after it has shown the help.
        if not isinstance(end.code, str):
            raise
        print(end.code, file=sys.stderr)
        sys.exit(exit_code(end.__cause__))

"""What the project's programs have in common: integers in flags, errors in a line, exit codes."""

import re
import signal
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from absl import app, flags

from scalable_agent_popart import errors
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.system import signals

_INTEGER = re.compile(r"([+-]?\d+(?:\.\d+)?(?:e[+-]?\d{1,3})?)([kmbg]?)", re.ASCII | re.IGNORECASE)
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}


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
            if errors.explain(error):
                raise
            # The library begins some of its lines so.
            message = str(error).removeprefix("ERROR:: ").removesuffix(".")
            advice = "; see --help" if isinstance(error, flags.Error) else ""
            raise UserError(f"{message}{advice}") from error
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        if (line := errors.explain(error)) is None:
            raise
        print(f"error: {line}", file=sys.stderr)
        sys.exit(errors.exit_code(error))
    except SystemExit as end:
        if end.code == 1 and any(re.match(r"--?(help|\?)", word) for word in sys.argv[1:]):
            sys.exit(0)  # The library ends with 1 after it has shown the help.
        if not isinstance(end.code, str):
            raise
        print(end.code, file=sys.stderr)
        sys.exit(errors.exit_code(end.__cause__))

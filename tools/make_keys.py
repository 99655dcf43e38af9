"""Makes the keys of a run before its learner would.

  python tools/make_keys.py keys/NAME

Learner and actor jobs that see no common directory need this, each with `--keys_dir`. The learner
gets the files `authority.crt`, `learner.crt` and `learner.key`, and actor jobs get `authority.crt`,
`actor.crt` and `actor.key`. Otherwise the learner makes them in the run directory at its first
start. Whoever has these files can take part in the run.
"""

import sys
from pathlib import Path

from scalable_agent_popart.distributed import keys
from scalable_agent_popart.errors import UserError


def main(arguments: list[str]) -> None:
    """Makes keys in a new directory; a user's error is one line and exit code 2."""
    try:
        if len(arguments) != 1 or arguments[0].startswith("-"):
            raise UserError("give one directory that does not exist: make_keys.py keys/NAME")
        keys.make(Path(arguments[0]))
        print(f"keys written: {arguments[0]}")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])

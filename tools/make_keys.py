"""Makes the keys of a run before its learner would.

  python tools/make_keys.py keys/NAME

Learner and actor jobs that see no common directory need this, each with `--keys_dir`. The learner
gets the files `authority.crt`, `learner.crt` and `learner.key`, and actor jobs get `authority.crt`,
`actor.crt` and `actor.key`. Otherwise the learner makes them in the run directory at its first
start. Whoever has these files can take part in the run.
"""

if __name__ == "__main__":
    import start  # noqa: F401

from pathlib import Path

from absl import flags

from scalable_agent_popart.distributed import keys
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.system import program


def main(argv: list[str]) -> None:
    """Makes keys in a new directory."""
    if len(argv) != 2:
        raise UserError("give one directory that does not exist: make_keys.py keys/NAME")
    keys.make(Path(argv[1]))
    print(f"keys written: {argv[1]}")


if __name__ == "__main__":
    program.run(main, flags.FLAGS)

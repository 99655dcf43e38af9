"""A population's directory: the runs of its members, `member-00` and so on, and what they share.

A member writes to its own directory only, but for `population.json`, the flags that all share,
which the first one writes, and `lock`, which is held for that.
"""

import dataclasses
import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.population.member_directory import MemberDirectory, read_text
from scalable_agent_popart.runs.directory import DAMAGE, POPULATION_FILE, flock, write_atomically


class PopulationDirectory:
    """Paths of a population, and the flags that its members share."""

    def __init__(self, path: str):
        self.path = Path(path)
        self._settings = self.path / POPULATION_FILE

    def member(self, number: int) -> MemberDirectory:
        """One member's directory."""
        return MemberDirectory(str(self.path / f"member-{number:02d}"))

    def read_config(self) -> Config | None:
        """The flags that the population was begun with, or None if there is none.

        Raises:
          UserError: if they cannot be read.
        """
        try:
            given = json.loads(read_text(self._settings))["flags"]
            return Config.from_record({"level_name": given["level_name"], **given})
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (*DAMAGE, OSError, UserError) as error:
            raise UserError(
                f"{self._settings} is damaged or not of this program ({error}); "
                "give another --logdir"
            ) from error

    def check(self, config: Config) -> None:
        """Writes nothing; raises UserError if members of `config` cannot train here."""
        if (self.path / "config.json").exists():
            raise UserError(f"{self.path} holds a run, not a population; give another --logdir")
        begun = self.read_config()
        if begun is None:
            return
        differences = config.refused_changes(begun)
        if differences:
            raise UserError(
                f"{self.path} holds another population: {'; '.join(differences)}; "
                "give the same flags or another --logdir"
            )

    def join(self, config: Config, precision: str) -> Config:
        """Begins the population unless another member has; else checks as `check` does.

        Args:
          config: the population's.
          precision: the type that `--precision=auto` is for all members, if this one is the first.

        Returns:
          `config` with the type that is the population's.
        """
        self.check(config)
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / "lock", "w") as lock:
            flock(lock, fcntl.LOCK_EX)  # Of several members the first one decides.
            self.check(config)
            begun = self.read_config()
            if begun is None:
                begun = dataclasses.replace(config, precision=precision)
                write_atomically(self._settings, {"flags": dataclasses.asdict(begun)})
        return dataclasses.replace(config, precision=begun.precision)

    def member_config(self, config: Config, number: int, start: Mapping[str, Any]) -> Config:
        """A member's own configuration.

        Args:
          config: the population's.
          number: of the member.
          start: flag to value of the hyperparameters that it starts with.
        """
        return dataclasses.replace(
            config,
            logdir=str(self.member(number).path),
            # No two members of populations with neighbouring seeds share one.
            seed=config.seed * config.population_size + number,
            pbt_member=number,
            pbt_places=1,
            **start,
        )

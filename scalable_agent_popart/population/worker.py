"""A worker of a population: a process that trains one member, or all of them in turns."""

import dataclasses
import gc
import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Any

from absl import logging

from scalable_agent_popart import factory
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import DivergenceError, InUseError, UserError
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.population import rules
from scalable_agent_popart.population.directory import PopulationDirectory
from scalable_agent_popart.population.member import Member
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.runs.checkpoints import frames_of, newest_checkpoint
from scalable_agent_popart.runs.directory import RunDirectory
from scalable_agent_popart.training import trainer

_MAX_RESCUES = 20  # How often in a row a member that diverges goes on with other weights.
_POLL_SECONDS = 2.0
_REMINDER_SECONDS = 600.0


class Worker:
    """Trains members of a population in this process, one after the other, as others may do."""

    def __init__(
        self,
        config: Config,
        start: Mapping[str, float],
        parts: trainer.Parts | None = None,
        show_progress: bool = False,
    ):
        self._config = config
        self._start = start
        self._show_progress = show_progress
        self._population = PopulationDirectory(config.logdir)
        self._parts = parts or ReusedParts()
        self._warned: set[int] = set()  # Of members that have begun with other values.

    def take_turns(self) -> Iterator[int | None]:
        """Trains the member that is furthest behind, a turn at a time, until all are finished.

        Yields what `train_member` returns. While others train all that is left, it waits.
        """
        takes_turns = self._config.population_size > self._config.pbt_places
        while unfinished := self._unfinished():
            for number in unfinished:
                try:
                    signal_number = self.train_member(number, takes_turns)
                except InUseError:
                    continue
                gc.collect()  # Python would keep cycles that hold variables for long.
                yield signal_number
                break
            else:
                message = "others train all members that are not finished: waiting"
                logging.log_every_n_seconds(logging.WARNING, message, _REMINDER_SECONDS)
                time.sleep(_POLL_SECONDS)

    def train_member(self, number: int, takes_turns: bool = False) -> int | None:
        """Trains a member to its end, or if it takes turns, up to its next comparison.

        Returns None, or the number of the signal that asked to stop. Raises InUseError if another
        process trains the member; UserError if the directory is another population's, or the run
        diverges again and again.
        """
        population = self._population
        config = dataclasses.replace(self._config, pbt_member=number, pbt_places=1)
        population.check(config)
        own = population.member_config(config, number, self._starting_values(number))
        RunDirectory(own.logdir).check(own)
        factory.check_precision(config)
        population.join(config)
        while True:
            try:
                member = Member(own, population, takes_turns)
                return trainer.train(own, member, self._parts, self._show_progress)
            except DivergenceError as error:
                if error.signal_number is not None:
                    return error.signal_number
                message = f"member {number}: {str(error).partition(';')[0]}"
                events = reversed(population.member(number).read_lineage())
                rescues = itertools.takewhile(lambda e: e.comparison and e.fitness is None, events)
                if len(list(rescues)) >= _MAX_RESCUES:
                    raise UserError(
                        f"{message}, {_MAX_RESCUES} times without a comparison in between, "
                        "whatever it tries; look at the other flags, such as --reward_clipping"
                    ) from error
                logging.warning("%s; it copies another member or starts over", message)

    def _starting_values(self, number: int) -> dict[str, float]:
        """Returns the hyperparameters that a member starts with, or has started with."""
        config, directory = self._config, self._population.member(number)
        recorded = directory.read_config(config.suite)
        if recorded is None or newest_checkpoint(directory.checkpoints) is None:
            return {**rules.sample(config.suite.search_space, [config.seed, number]), **self._start}
        values = {name: getattr(recorded, name) for name in config.tuned}
        others = [f"--{name}" for name, value in self._start.items() if value != values[name]]
        if others and number not in self._warned:
            given = " and ".join(others)
            logging.warning("member %d has begun: %s counts only at its start", number, given)
            self._warned.add(number)
        return values

    def _unfinished(self) -> list[int]:
        """Lists the members that have frames to learn from, by how far their checkpoints are."""
        reached = {}
        for number in range(self._config.population_size):
            newest = newest_checkpoint(self._population.member(number).checkpoints)
            reached[number] = (frames_of(newest) or 0) if newest else 0
        end = self._config.total_environment_frames
        return sorted((n for n in reached if reached[n] < end), key=lambda n: reached[n])


class ReusedParts(trainer.Parts):
    """Parts used again for each run here, as TensorFlow keeps what it has traced: 10 MiB each."""

    def __init__(self) -> None:
        super().__init__()
        self._traced_for: Config | None = None
        self._learner: Learner | None = None

    def make_learner(self, config: Config, spec: Rollout) -> Learner:
        """Makes a learner that has learned nothing, if possible in the last one's variables."""
        fresh = factory.make_learner(config, spec)
        # The graphs read the hyperparameters from variables, but clip gradients only if asked to.
        blank: dict[str, Any] = dict.fromkeys(config.tuned, 0) | {
            "max_grad_norm": config.max_grad_norm > 0
        }
        traced_for = dataclasses.replace(config, logdir="", seed=0, pbt_member=0, **blank)
        if self._learner is None or traced_for != self._traced_for:
            self._traced_for, self._learner, self.policies = traced_for, fresh, {}
        else:
            for variable, value in zip(self._learner.variables, fresh.variables, strict=True):
                variable.assign(value)
            self._learner.hyperparameters.assign(fresh.hyperparameters.values())
        return self._learner

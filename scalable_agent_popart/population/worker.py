"""Trains members of a population: one of them to its end, or several in turns."""

import dataclasses
import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from scalable_agent_popart import factory
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import DivergenceError, InUseError, UserError
from scalable_agent_popart.learning.hyperparameters import Hyperparameters
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.population import pbt
from scalable_agent_popart.population.directory import PopulationDirectory
from scalable_agent_popart.population.member import Member
from scalable_agent_popart.population.member_directory import Event
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.runs.checkpoints import frames_of, newest_checkpoint
from scalable_agent_popart.runs.directory import RunDirectory
from scalable_agent_popart.training import trainer

# How often one that diverges is given something else to try, before this is thought hopeless.
_MOST_RESCUES = 20
_POLL_SECONDS = 2.0


class Graphs(trainer.Parts):
    """A learner and the actors' policies, used again for each run that this process trains.

    TensorFlow keeps what it has traced, some 10 MiB a run, so a process that trains many members
    must not trace anew for each.
    """

    def __init__(self) -> None:
        super().__init__()
        self._shape: Config | None = None
        self._learner: Learner | None = None

    @property
    def num_traces(self) -> int:
        """Counts the tracings of the present learner and policies."""
        of_learner = 0 if self._learner is None else self._learner.num_traces
        return of_learner + sum(policy.num_traces for policy in self.policies.values())

    def make_learner(self, config: Config, spec: Rollout) -> Learner:
        """A learner as `factory.make_learner` gives it, in the variables of the last one.

        The last one is replaced if the runs differ in more than weights and hyperparameters.
        """
        fresh = factory.make_learner(config, spec)
        shape = _shape(config)
        if self._learner is None or shape != self._shape:
            self._shape, self._learner, self.policies = shape, fresh, {}
        else:
            for variable, value in zip(self._learner.variables, fresh.variables, strict=True):
                variable.assign(value)
            self._learner.hyperparameters.assign(fresh.hyperparameters.values())
        return self._learner


def _shape(config: Config) -> Config:
    """The settings that a run's graphs are compiled for, all others blanked."""
    variables: dict[str, Any] = dict.fromkeys(
        (field.name for field in dataclasses.fields(Hyperparameters)), 0.0
    )
    variables["max_grad_norm"] = float(config.max_grad_norm > 0)  # Without it nothing is clipped.
    return dataclasses.replace(config, logdir="", seed=0, pbt_member=0, **variables)


def train_member(
    config: Config,
    start: Mapping[str, float],
    takes_turns: bool = False,
    show_progress: bool = True,
    graphs: Graphs | None = None,
) -> int | None:
    """Trains the member `config.pbt_member`.

    Args:
      config: the population's.
      start: flag to value of hyperparameters that are not to be drawn at the start.
      takes_turns: whether to train up to the next comparison only.
      show_progress: whether on the terminal.
      graphs: of the members that this process trained before.

    Returns:
      None at the end, of the run or of the turn; or the number of the signal that asked to stop.

    Raises:
      UserError: if the directory is another population's; if the run diverges again and again;
        or if one whose actors are other processes does, which can only go on in a new process.
      InUseError: if another process trains the member.
    """
    population = PopulationDirectory(config.logdir)
    population.check(config)
    number = config.pbt_member
    hyperparameters = _start(config, population, start)
    own = population.member_config(config, number, hyperparameters)
    RunDirectory(own.logdir).check(own)
    begun = population.read_config()
    precision = begun.precision if begun else factory.settle(config).precision
    config = population.join(config, precision)
    own = population.member_config(config, number, hyperparameters)
    graphs = graphs or Graphs()
    while True:
        try:
            member = Member(own, population, takes_turns)
            return trainer.train(own, member, graphs, show_progress)
        except DivergenceError as error:
            if error.signal_number is not None:
                return error.signal_number
            message = f"member {number}: {str(error).partition(';')[0]}"
            if _rescues(population.member(number).read_lineage()) >= _MOST_RESCUES:
                raise UserError(
                    f"{message}, {_MOST_RESCUES} times without a comparison in between, whatever "
                    "it tries; look at the other flags, such as --reward_clipping"
                ) from error
            if config.learner_address:  # Whose port this process cannot open again.
                raise UserError(
                    f"{message}; started again, it goes on from what another member published"
                ) from error
            logging.warning("%s; it goes on from what another member published", message)


def _start(
    config: Config, population: PopulationDirectory, given: Mapping[str, float]
) -> dict[str, float]:
    """The hyperparameters that a member starts with, or once did."""
    directory = population.member(config.pbt_member)
    recorded = directory.read_config()
    if recorded is None or newest_checkpoint(directory.checkpoints) is None:
        return {**pbt.draw(config.suite.search_space, [config.seed, config.pbt_member]), **given}
    once = {name: getattr(recorded, name) for name in config.tuned}
    for name in given:
        if given[name] != once[name]:
            logging.warning(
                "member %d has begun: --%s only says where one begins", config.pbt_member, name
            )
    return once


def _rescues(lineage: Sequence[Event]) -> int:
    """How often in a row, up to now, the member went on from elsewhere because it diverged."""
    count = 0
    for event in reversed(lineage):
        if event.fitness is not None or not event.comparison:
            break
        count += 1
    return count


def turns(config: Config, start: Mapping[str, float]) -> Iterator[int | None]:
    """Trains whoever is furthest behind, a turn at a time, until all members are finished.

    Others may do the same at the same time, with the same population.

    Args:
      config: the population's.
      start: as in `train_member`.

    Yields:
      What `train_member` returned, after each turn. While others train all members that are not
      finished, it waits: those may die.

    Raises:
      UserError: see `train_member`.
    """
    population = PopulationDirectory(config.logdir)
    takes_turns = config.population_size > config.pbt_places
    graphs = Graphs()
    waits = False
    while True:
        reached = {n: _frames(population, n) for n in range(config.population_size)}
        left = [n for n, frames in reached.items() if frames < config.total_environment_frames]
        if not left:
            return
        for number in sorted(left, key=lambda n: reached[n]):
            member = dataclasses.replace(config, pbt_member=number, pbt_places=1)
            try:
                signal_number = train_member(member, start, takes_turns, False, graphs)
            except InUseError:
                continue
            gc.collect()  # Cycles that hold variables, and that Python would leave for long.
            yield signal_number
            waits = False
            break
        else:
            if not waits:
                logging.warning("all members that are not finished are trained elsewhere: waiting")
                waits = True
            time.sleep(_POLL_SECONDS)


def _frames(population: PopulationDirectory, number: int) -> int:
    """Environment frames that a member's newest checkpoint has learned from."""
    newest = newest_checkpoint(population.member(number).checkpoints)
    return (frames_of(newest) or 0) if newest else 0

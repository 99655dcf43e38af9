"""Trains members of a population: one of them to its end, or several in turns."""

import dataclasses
import functools
import time
from collections.abc import Iterator, Mapping

from absl import logging

from scalable_agent_popart import cluster, pbt, training
from scalable_agent_popart.checkpoints import frames_of, newest_checkpoint
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import DivergenceError, InUseError, UserError
from scalable_agent_popart.member import Member
from scalable_agent_popart.population_directory import PopulationDirectory
from scalable_agent_popart.run_directory import RunDirectory

# How often one that diverges is given something else to try, before this is thought hopeless.
_MOST_RESCUES = 20
_POLL_SECONDS = 2.0


def train_member(
    config: Config,
    start: Mapping[str, float],
    takes_turns: bool = False,
    show_progress: bool = True,
) -> int | None:
    """Trains the member `config.pbt_member`.

    Args:
      config: the population's.
      start: flag to value of hyperparameters that are not to be drawn at the start.
      takes_turns: whether to train up to the next comparison only.
      show_progress: whether on the terminal.

    Returns:
      None at the end, of the run or of the turn; or the number of the signal that asked to stop.

    Raises:
      UserError: if the directory is another population's; or if a run whose actors are other
        processes diverged, which can only go on in a new process.
      InUseError: if another process trains the member.
    """
    population = PopulationDirectory(config.logdir)
    population.check(config)
    number = config.pbt_member
    own = population.member_config(config, number, _start(config, population, start))
    RunDirectory(own.logdir).check(own)
    population.join(config)
    make_tuner = functools.partial(Member, own, population, takes_turns=takes_turns)
    rescues, reached = 0, -1
    while True:
        try:
            if config.learner_address:
                return training.train(own, cluster.RemoteActors, make_tuner)
            return training.train(own, make_tuner=make_tuner, show_progress=show_progress)
        except DivergenceError as error:
            message = f"member {number}: {str(error).partition(';')[0]}"
            if config.learner_address:  # Whose port this process cannot open again.
                raise UserError(
                    f"{message}; started again, it goes on from another member's checkpoint"
                ) from error
            logging.warning("%s; it goes on from another member's checkpoint", message)
            before, reached = reached, _frames(population, number)
            rescues = rescues + 1 if reached <= before else 1
            if rescues == _MOST_RESCUES:
                raise UserError(
                    f"{message}, for the {_MOST_RESCUES}th time in a row, whatever it tries; "
                    "look at the other flags, such as --reward_clipping"
                ) from error


def _start(
    config: Config, population: PopulationDirectory, given: Mapping[str, float]
) -> dict[str, float]:
    """The hyperparameters that a member starts with, or once did."""
    recorded = population.member(config.pbt_member).read_config()
    if recorded is not None:
        return {name: getattr(recorded, name) for name in config.tuned}
    return {**pbt.draw(config.suite.search_space, [config.seed, config.pbt_member]), **given}


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
    while True:
        reached = {n: _frames(population, n) for n in range(config.population_size)}
        left = [n for n, frames in reached.items() if frames < config.total_environment_frames]
        if not left:
            return
        for number in sorted(left, key=lambda n: reached[n]):
            member = dataclasses.replace(config, pbt_member=number, pbt_places=1)
            try:
                signal_number = train_member(member, start, takes_turns, show_progress=False)
            except InUseError:
                continue
            yield signal_number
            break
        else:
            time.sleep(_POLL_SECONDS)


def _frames(population: PopulationDirectory, number: int) -> int:
    """Environment frames that a member's newest checkpoint has learned from."""
    newest = newest_checkpoint(population.member(number).checkpoints)
    return (frames_of(newest) or 0) if newest else 0

"""A member of a population: a run that is compared with others, copies them and explores.

When a comparison is due, the member saves a checkpoint and publishes it with the fitness that its
episodes have earned. The comparison ends with another checkpoint, so that weights, hyperparameters,
the line in `lineage.jsonl` and the number of comparisons change together or not at all. A member
that dies in between returns to the first checkpoint and repeats the comparison. The random numbers
are the same, since they depend on seed, comparison and who else has published.
"""

import dataclasses
import functools
import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from scalable_agent_popart import factory
from scalable_agent_popart.errors import DivergenceError, InUseError, UserError
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.population import rules
from scalable_agent_popart.population.directory import Event, PopulationDirectory, Published
from scalable_agent_popart.runs import checkpoints
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.logs import JsonLines
from scalable_agent_popart.runs.run import Run
from scalable_agent_popart.training import initial_weights, trainer

_MAX_LOOKS = 5  # Attempts to fetch a checkpoint that newer ones replace.
_FIRST_PAUSE_SECONDS = 0.1
_MAX_RESCUES = 20  # A member that diverges gets other weights so often in a row.
_POLL_SECONDS = 2.0
_REMINDER_SECONDS = 600.0

Save = Callable[[], str]


class Member(trainer.Tuner):
    """Compares and changes one member's run."""

    def __init__(
        self,
        config: Config,
        population: PopulationDirectory,
        takes_turns: bool = False,
        diverged: bool = False,
    ):
        """If it takes turns, the run ends where a comparison is due; see `take_turns`.

        After training has `diverged` the run does not resume from its own weights.
        """
        self._config, self._takes_turns, self._diverged = config, takes_turns, diverged
        self._others = {n: population.member(n) for n in range(config.population_size)}
        self._directory = self._others.pop(config.pbt_member)
        self._lineage = JsonLines(self._directory.lineage)
        self._returns: dict[str, list[float]] = {task: [] for task in config.suite.tasks}
        self._num_comparisons = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._compared_at = tf.Variable(0, dtype=tf.int64, trainable=False)  # frames
        # Later episodes count. Reading the variable for each would be slow.
        self._counts_after: int | None = None

    def attach(self, learner: Learner) -> Mapping[str, Any]:
        self._learner = learner
        self._tuned = {name: getattr(learner.hyperparameters, name) for name in self._config.tuned}
        self._hyperparameters = tf.train.Checkpoint(**self._tuned)
        return {
            "hyperparameters": self._hyperparameters,
            "num_comparisons": self._num_comparisons,
            "compared_at": self._compared_at,
            "lineage_length": self._lineage.length,
        }

    def on_episode(self, task: str, episode_return: float, frames: int) -> None:
        """Counts a finished game if it ended after the burn-in and after the last comparison."""
        if self._counts_after is None:
            self._counts_after = max(int(self._compared_at), self._config.pbt_burn_in_frames)
        if frames > self._counts_after:
            self._returns[task].append(episode_return)

    def begin(self, save: Save) -> None:
        """Makes an interrupted comparison; after divergence copies a member or starts over."""
        self._record()  # Events of a lost comparison are cut off.
        if not self._lineage.length:
            self._record(Event(0, 0, None, None, None, False, None, self._values()))
        num_comparisons, frames = int(self._num_comparisons), int(self._learner.frames)
        if self._diverged:
            self._compare(None, save)
        elif (published := self._directory.published()) and (
            (published.comparison, published.frames) == (num_comparisons + 1, frames)
        ):
            self._compare(published.fitness, save)
        elif self.due():
            self._compare(self.publish(save), save)

    def due(self) -> bool:
        """Returns whether enough episodes count, and at least one of each task that does."""
        num_episodes = sum(map(len, self._returns.values()))
        return num_episodes >= self._config.pbt_episodes and self._fitness() is not None

    def tune(self, save: Save) -> bool:
        """Publishes, then compares, unless the run is finished and keeps what it published.

        A run that takes turns ends here, and `begin` compares, as if it had been killed.
        """
        fitness = self.publish(save)
        if self._takes_turns or self._learner.frames >= self._config.total_environment_frames:
            return False
        self._compare(fitness, save)
        return True

    def publish(self, save: Save) -> float:
        """Saves a checkpoint and publishes it; returns the fitness that it has earned."""
        fitness = self._fitness()
        assert fitness is not None, "due"
        record = Published(
            comparison=int(self._num_comparisons) + 1,
            frames=int(self._learner.frames),
            fitness=fitness,
            episodes=sum(map(len, self._returns.values())),
            checkpoint=save(),
        )
        self._directory.publish(record)
        return fitness

    def _fitness(self) -> float | None:
        return rules.fitness(self._returns, self._config.suite.reference_scores)

    def _values(self) -> dict[str, float]:
        return {name: float(variable) for name, variable in self._tuned.items()}

    def _record(self, *events: Event) -> None:
        """Cuts the lineage back to what the checkpoint knows, and appends events to it."""
        self._lineage.open()
        for event in events:
            self._lineage.write(event._asdict())
        self._lineage.flush()
        self._lineage.close()

    def _compare(self, fitness: float | None, save: Save) -> None:
        """Compares with another member, copies it if fitter (or fitness None), explores, saves."""
        frames, num_updates = int(self._learner.frames), int(self._learner.num_updates)
        number = int(self._num_comparisons) + 1
        generator = np.random.default_rng([self._config.seed, number])
        published = [n for n, other in self._others.items() if other.published()]
        candidates = [int(generator.choice(published))] if published else []
        candidates += published if fitness is None else []
        partner, publication, copied = None, None, False
        while candidates and not copied:
            partner = candidates.pop(0)
            publication, copied = self._meet(partner, fitness)
        starts_over = fitness is None and not copied
        if starts_over:
            seed = [self._config.seed, number]
            tf.random.set_seed(int(np.random.SeedSequence([*seed, 2]).generate_state(1)[0]))
            fresh = factory.make_learner(self._config, factory.make_rollout_spec(self._config))
            if self._config.init_from:
                initial_weights.take_over(self._config, fresh)
            self._learner.copy(fresh)
            values = rules.sample(self._config.suite.search_space, [*seed, 1])
        else:
            values = rules.explore(self._values(), generator)
        self._learner.hyperparameters.assign(values)
        if copied or starts_over:
            self._learner.frames.assign(frames)
            self._learner.num_updates.assign(num_updates + 1)  # Actors must fetch new weights.
        self._num_comparisons.assign(number)
        self._compared_at.assign(frames)
        self._counts_after = None
        event = Event(
            comparison=number,
            frames=frames,
            fitness=fitness,
            partner=partner,
            partner_fitness=publication.fitness if publication else None,
            copied=copied,
            source_frames=publication.frames if publication and copied else None,
            hyperparameters=self._values(),
            started_over=starts_over,
        )
        self._record(event)
        for returns in self._returns.values():
            returns.clear()
        save()

    def _meet(self, partner: int, fitness: float | None) -> tuple[Published | None, bool]:
        """Copies a fitter partner; returns its publication, if it holds, and whether it did."""
        for look in range(_MAX_LOOKS):
            source = self._others[partner].published()
            if source is None or not (fitness is None or rules.exploits(fitness, source.fitness)):
                return source, False
            try:
                with self._directory.fetch(source) as checkpoint:
                    checkpoints.load(
                        checkpoint, learner=self._learner, hyperparameters=self._hyperparameters
                    )
                return source, True
            except FileNotFoundError:  # The partner has published again, and files may come late.
                time.sleep(_FIRST_PAUSE_SECONDS * 2**look)
        return None, False


def train_member(
    config: Config,
    start: Mapping[str, float],
    parts: trainer.Parts | None = None,
    takes_turns: bool = False,
    show_progress: bool = False,
) -> int | None:
    """Trains the member `pbt_member` to the end of its run or turn.

    `start` gives hyperparameters that are then not sampled. Returns None, or the number of the
    signal that asked to stop. Raises InUseError if another process trains the member. Raises
    UserError if the directory is another population's, or if the run diverges too often.
    """
    population, number = PopulationDirectory(config.logdir), config.pbt_member
    run_config = population.member_config(config, number, _starting_values(config, start))
    parts = parts or trainer.Parts()
    Run.check(run_config)
    factory.check_network(config)
    population.join(config)
    diverged = False
    while True:
        tuner = Member(run_config, population, takes_turns, diverged)
        try:
            return trainer.train(run_config, tuner, parts, show_progress)
        except DivergenceError as error:
            if error.signal_number is not None:
                return error.signal_number
            message = f"member {number}: {str(error).partition(';')[0]}"
            last = population.member(number).read_lineage()[1:][-_MAX_RESCUES:]
            if [event.fitness for event in last] == [None] * _MAX_RESCUES:
                message += f", {_MAX_RESCUES} times without a comparison in between"
                advice = "whatever it tries; look at the other flags, such as --reward_clipping"
                raise UserError(f"{message}, {advice}") from error
            logging.warning("%s; it copies another member or starts over", message)
            diverged = True


def take_turns(config: Config, start: Mapping[str, float]) -> int | None:
    """Trains all members in this process, one after the other; other processes may do so, too.

    If there are more members than places, the one that is furthest behind has the next turn, which
    ends when a comparison is due. The member's next turn begins with that comparison, by which time
    the others have played as far.

    It waits while others train all members that are left. Returns None, or the number of the signal
    that asked to stop.
    """
    takes_turns, parts = config.population_size > config.pbt_places, trainer.Parts()
    while unfinished := _unfinished(config):
        for number in unfinished:
            member_config = dataclasses.replace(config, pbt_member=number, pbt_places=1)
            try:
                signal_number = train_member(member_config, start, parts, takes_turns)
            except InUseError:
                continue
            gc.collect()  # Python would keep cycles that hold variables for long.
            if signal_number is not None:
                return signal_number
            break
        else:
            message = "others train all members that are not finished: waiting"
            logging.log_every_n_seconds(logging.WARNING, message, _REMINDER_SECONDS)
            time.sleep(_POLL_SECONDS)
    return None


def _unfinished(config: Config) -> list[int]:
    """Lists the members that have frames to learn from, by how far their checkpoints are."""
    population, end = PopulationDirectory(config.logdir), config.total_environment_frames
    members = range(config.population_size)
    reached = [checkpoints.saved_frames(population.member(n).checkpoints) or 0 for n in members]
    return sorted((n for n in members if reached[n] < end), key=lambda n: reached[n])


def _starting_values(config: Config, start: Mapping[str, float]) -> dict[str, float]:
    """Returns the hyperparameters with which a member starts, or has started."""
    number = config.pbt_member
    directory = PopulationDirectory(config.logdir).member(number)
    run = Run.find(directory.path)
    if run is None or not directory.has_checkpoint:
        return {**rules.sample(config.suite.search_space, [config.seed, number]), **start}
    values = {name: getattr(run.config, name) for name in config.tuned}
    if ignored := [f"--{name}" for name, value in start.items() if value != values[name]]:
        _warn(f"member {number} has begun: {' and '.join(ignored)} counts only at its start")
    return values


@functools.cache  # A member warns once, though it may have more turns.
def _warn(text: str) -> None:
    logging.warning("%s", text)

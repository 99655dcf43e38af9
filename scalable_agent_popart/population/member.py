"""A member of a population: a run that is compared with others, copies them and explores.

When a member is due it saves a checkpoint and publishes it, with the fitness of the episodes that
led there. Then it is compared, which ends in another checkpoint: weights and hyperparameters,
copied or not, the line in `lineage.jsonl` and the number of comparisons made become the run's
together, or not at all. A member that dies in between is back at the first of the two, finds its
fitness published and makes the comparison again. Its chance depends on the member's seed, the
comparison's number and who else has published alone.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from scalable_agent_popart import factory
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.population import pbt
from scalable_agent_popart.population.directory import PopulationDirectory
from scalable_agent_popart.population.member_directory import Event, Published
from scalable_agent_popart.runs import checkpoints
from scalable_agent_popart.runs.logs import JsonLines
from scalable_agent_popart.training.tuning import Tuner

# How often to look again for a checkpoint that is gone in favour of a newer one.
_MOST_LOOKS = 5
_FIRST_PAUSE_SECONDS = 0.1

Save = Callable[[], str]


class Member(Tuner):
    """Compares and changes one member's run."""

    def __init__(
        self,
        config: Config,
        population: PopulationDirectory,
        takes_turns: bool = False,
    ):
        """Reads and writes nothing yet.

        Args:
          config: the member's own.
          population: that it is in.
          takes_turns: whether to stop before each comparison, so that others can train; it is
            made when the member's next turn begins.
        """
        self._config = config
        self._takes_turns = takes_turns
        self._directory = population.member(config.pbt_member)
        others = sorted(set(range(config.population_size)) - {config.pbt_member})
        self._others = {number: population.member(number) for number in others}
        self._lineage = JsonLines(self._directory.lineage)
        self._returns: dict[str, list[float]] = {task: [] for task in config.suite.tasks}
        self._num_comparisons = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._compared_at = tf.Variable(0, dtype=tf.int64, trainable=False)  # frames
        # Frames after which an episode counts. Read once, when the variable has been restored: a
        # resumed run hears of all its episodes, and reading a variable takes ten times as long.
        self._counts_after: int | None = None

    def attach(self, learner: Learner) -> Mapping[str, Any]:
        """Takes the learner to tune; returns the tuner's own part of a checkpoint, by name."""
        self._learner = learner
        tuned = {name: getattr(learner.hyperparameters, name) for name in self._config.tuned}
        self._hyperparameters = tf.train.Checkpoint(**tuned)
        return {
            "hyperparameters": self._hyperparameters,
            "num_comparisons": self._num_comparisons,
            "compared_at": self._compared_at,
            "lineage_length": self._lineage.length,
        }

    def on_episode(self, task: str, episode_return: float, frames: int) -> None:
        """Counts a finished game, if it ended after the burn-in and after the last comparison."""
        if self._counts_after is None:
            self._counts_after = max(int(self._compared_at), self._config.pbt_burn_in_frames)
        if frames > self._counts_after:
            self._returns[task].append(episode_return)

    def begin(self, save: Save) -> None:
        """Makes the comparison that the last turn ended before, or was cut off from.

        Where training had diverged, goes on from elsewhere.
        """
        self._lineage.open()
        if not self._lineage.length:
            start = Event(0, 0, None, None, None, False, None, self._tuned())
            self._record(start)
        if self._has_diverged():
            self._compare(None, save)
            return
        published = self._directory.published()
        if (
            published is not None
            and published.comparison == self._num_comparisons + 1
            and published.frames == self._learner.frames
        ):
            self._compare(published.fitness, save)
        elif self.due():
            self._compare(self._publish(save), save)

    def due(self) -> bool:
        """Whether the burn-in is over and enough episodes of all tasks that count are finished."""
        return (
            sum(map(len, self._returns.values())) >= self._config.pbt_episodes
            and self._fitness() is not None
        )

    def tune(self, save: Save) -> bool:
        """Publishes, and is compared, unless it takes turns or has reached its end."""
        fitness = self._publish(save)
        # What the run ends with is what was published of it.
        finished = int(self._learner.frames) >= self._config.total_environment_frames
        if self._takes_turns or finished:
            return False
        self._compare(fitness, save)
        return True

    def on_divergence(self) -> None:
        """Leaves word for the next start, whoever's that is."""
        self._directory.divergence.write_text(str(int(self._num_comparisons)))

    def close(self) -> None:
        """Closes the lineage's log."""
        self._lineage.close()

    def _has_diverged(self) -> bool:
        """Whether the run diverged since its last comparison."""
        try:
            return self._directory.divergence.read_text() == str(int(self._num_comparisons))
        except FileNotFoundError:
            return False

    def _fitness(self) -> float | None:
        return pbt.fitness(self._returns, self._config.suite.reference_scores)

    def _tuned(self) -> dict[str, float]:
        values = self._learner.hyperparameters.values()
        return {name: values[name] for name in self._config.tuned}

    def _record(self, event: Event) -> None:
        self._lineage.write(event._asdict())
        self._lineage.flush()

    def _publish(self, save: Save) -> float:
        """Saves, and makes the present fitness known with this checkpoint; returns it."""
        fitness = self._fitness()
        assert fitness is not None, "due"
        self._directory.publish(
            Published(
                member=self._config.pbt_member,
                comparison=int(self._num_comparisons) + 1,
                frames=int(self._learner.frames),
                fitness=fitness,
                episodes=sum(map(len, self._returns.values())),
                mean_returns={t: float(np.mean(own)) for t, own in self._returns.items() if own},
                hyperparameters=self._tuned(),
                checkpoint=save(),
            )
        )
        return fitness

    def _compare(self, fitness: float | None, save: Save) -> None:
        """Compares with another member, copies it if that is fitter, explores, and saves.

        Args:
          fitness: the member's; None if training has diverged, and anyone is fitter.
          save: writes a checkpoint.
        """
        frames, number = int(self._learner.frames), int(self._num_comparisons) + 1
        generator = np.random.default_rng([self._config.seed, number])
        published = [other for other in self._others if self._published(other)]
        partner = pbt.choose_partner(published, generator)
        theirs, copied = (None, False) if partner is None else self._meet(partner, fitness)
        if fitness is None:  # Anyone will do.
            for other in published:
                if not copied:
                    partner, (theirs, copied) = other, self._meet(other, fitness)
        starts_over = fitness is None and not copied
        if starts_over:
            self._start_over(number)
        else:
            values = pbt.explore(self._tuned(), generator)
            self._learner.hyperparameters.assign(values)
        self._num_comparisons.assign(number)
        self._compared_at.assign(frames)
        self._counts_after = None
        self._record(
            Event(
                comparison=number,
                frames=frames,
                fitness=fitness,
                partner=partner,
                partner_fitness=theirs.fitness if theirs else None,
                copied=copied,
                source_frames=theirs.frames if theirs and copied else None,
                hyperparameters=self._tuned(),
                started_over=starts_over,
            )
        )
        for returns in self._returns.values():
            returns.clear()
        save()

    def _meet(self, partner: int, fitness: float | None) -> tuple[Published | None, bool]:
        """What the partner published, and whether that was fitter and has been taken over."""
        for look in range(_MOST_LOOKS):
            source = self._published(partner)
            if source is None or not (fitness is None or pbt.exploits(fitness, source.fitness)):
                return source, False
            try:
                with self._directory.fetch(source) as checkpoint:
                    self._take(checkpoint)
            except FileNotFoundError:  # The partner has published again.
                time.sleep(_FIRST_PAUSE_SECONDS * 2**look)  # File systems may be slow to show it.
            except UserError as error:
                logging.warning("member %d's %s: %s", partner, source.checkpoint, error)
                return source, False
            else:
                return source, True
        return None, False

    def _published(self, number: int) -> Published | None:
        """What another member published, if that can be read."""
        try:
            return self._others[number].published()
        except UserError as error:
            logging.warning("%s", error)
            return None

    def _take(self, checkpoint: str) -> None:
        """Loads all that is copied, or if that fails nothing."""
        tuned = [getattr(self._learner.hyperparameters, name) for name in self._config.tuned]
        own = [(variable, variable.numpy()) for variable in (*self._learner.variables, *tuned)]
        try:
            checkpoints.load(
                checkpoint, learner=self._learner, hyperparameters=self._hyperparameters
            )
        except UserError:
            for variable, value in own:
                variable.assign(value)
            raise
        progress = {self._learner.frames.ref(), self._learner.num_updates.ref()}
        for variable, value in own:
            if variable.ref() in progress:
                variable.assign(value)
        self._learner.num_updates.assign_add(1)  # For actors, these weights are new.

    def _start_over(self, number: int) -> None:
        """Draws everything anew but the count of frames: nobody can be copied."""
        seeds = np.random.SeedSequence([self._config.seed, number, 2])
        tf.random.set_seed(int(seeds.generate_state(1)[0]))
        spec = factory.make_rollout_spec(self._config)
        fresh = factory.make_learner(self._config, spec)
        progress = {self._learner.frames.ref(), self._learner.num_updates.ref()}
        for variable, new in zip(self._learner.variables, fresh.variables, strict=True):
            if variable.ref() not in progress:
                variable.assign(new)
        self._learner.num_updates.assign_add(1)
        drawn = pbt.draw(self._config.suite.search_space, [self._config.seed, number, 1])
        self._learner.hyperparameters.assign(drawn)

"""Members' runs with made-up weights and episodes, for tests of what they do with each other."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.config import Config
from scalable_agent_popart.population.directory import PopulationDirectory
from scalable_agent_popart.population.member import Member
from scalable_agent_popart.runs.checkpoints import Checkpoints
from tests.fakes import small_learner

_SIZE = 3
BURN_IN = 1000
EPISODES = 10
_FLAGS = {
    "mode": "pbt",
    "level_name": "catch5",
    "use_popart": True,
    "population_size": _SIZE,
    "pbt_burn_in_frames": BURN_IN,
    "pbt_episodes": EPISODES,
}


class Run:
    """A member's run with made-up weights and episodes."""

    def __init__(self, root: Path, number: int, takes_turns: bool = False, begin: bool = True):
        population = PopulationDirectory(str(root))
        config = Config.from_flags({**_FLAGS, "logdir": str(root)})
        start = {"learning_rate": 0.001 * (number + 1), "entropy_cost": 0.01, "epsilon": 0.1}
        self.config = population.member_config(config, number, start)
        self.directory = population.member(number)
        self.directory.path.mkdir(parents=True, exist_ok=True)
        spec = factory.make_rollout_spec(self.config)
        self.learner = factory.make_learner(self.config, spec)
        self.member = Member(self.config, population, takes_turns)
        self.checkpoints = Checkpoints(
            self.directory.checkpoints, learner=self.learner, **self.member.attach(self.learner)
        )
        self.resumed = self.checkpoints.restore()
        if begin:
            self.member.begin(self.checkpoints.save)

    def learn(self, frames: int, seed: int) -> "Run":
        """Moves everything that learning moves."""
        rng = np.random.default_rng(seed)
        for variable in self._copied():
            variable.assign(rng.normal(size=variable.shape))
        self.learner.frames.assign(frames)
        self.learner.num_updates.assign(frames // 10)
        return self

    def play(self, percent: float, episodes: int = EPISODES) -> "Run":
        """Finishes games with this human-normalised score."""
        tasks = self.config.suite.tasks
        for i in range(episodes):
            low, high = self.config.suite.reference_scores[tasks[i % len(tasks)]]
            raw = low + (high - low) * percent / 100
            self.member.on_episode(tasks[i % len(tasks)], raw, int(self.learner.frames))
        return self

    def tune(self) -> bool:
        return self.member.tune(self.checkpoints.save)

    def weights(self) -> list[np.ndarray]:
        return small_learner.snapshot(self._copied())

    def _copied(self) -> list[tf.Variable]:
        """All variables of the learner but the run's own progress."""
        own = {self.learner.frames.ref(), self.learner.num_updates.ref()}
        return [variable for variable in self.learner.variables if variable.ref() not in own]

    def progress(self) -> tuple[int, int]:
        return int(self.learner.frames), int(self.learner.num_updates)

    def tuned(self) -> dict[str, float]:
        values = self.learner.hyperparameters.values()
        return {name: values[name] for name in self.config.tuned}


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


def publish(root: Path, number: int, percent: float, frames: int = 2000, seed: int = 7) -> Run:
    """A member that has published, and has gone on learning since."""
    run = Run(root, number, takes_turns=True).learn(frames, seed).play(percent)
    assert not run.tune()
    return run


def explored(values: dict[str, float], base: dict[str, float]) -> bool:
    """Whether values are what `explore` may make of others."""
    ratios = [values[name] / base[name] for name in base]
    return all(np.isclose(r, (1.0, 1.2, 1 / 1.2), rtol=1e-6).any() for r in ratios)

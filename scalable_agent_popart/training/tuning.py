"""Changes of hyperparameters while a run trains, as training sees them."""

from collections.abc import Callable, Mapping
from typing import Any

from scalable_agent_popart.learning.learner import Learner


class Tuner:
    """Leaves a run's hyperparameters as they are; subclasses change them, and maybe weights."""

    def attach(self, learner: Learner) -> Mapping[str, Any]:
        """Takes the learner to tune; returns the tuner's own part of a checkpoint, by name."""
        del learner
        return {}

    def on_episode(self, task: str, episode_return: float, frames: int) -> None:
        """Called for each finished game of the run, also for those before it was resumed."""

    def begin(self, save: Callable[[], str]) -> None:
        """Called when everything is restored and training goes on, unless it is finished.

        Args:
          save: writes a checkpoint and returns its path; here and in `tune`.
        """

    def due(self) -> bool:
        """Tells if `tune` is to be called before the next update."""
        return False

    def tune(self, save: Callable[[], str]) -> bool:
        """Changes what it changes; returns True if training goes on."""
        raise NotImplementedError

    def on_divergence(self) -> None:
        """Called when the loss is no longer a finite number and training ends."""

    def close(self) -> None:
        """Ends the tuner's records."""

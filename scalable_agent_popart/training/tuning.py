"""What may change a run's hyperparameters while it trains, as training sees it."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from scalable_agent_popart.learning.learner import Learner


class Tuner(Protocol):
    """Changes a run's hyperparameters, and maybe its weights, while it trains.

    Attributes:
      tracked: what of it belongs to a checkpoint, by name.
    """

    tracked: Mapping[str, Any]

    def hear(self, task: str, episode_return: float, frames: int) -> None:
        """Is told of each finished game of the run, also of those before it was resumed."""
        ...

    def begin(self, save: Callable[[], str]) -> None:
        """Called before training goes on, unless it is finished, with everything restored.

        Args:
          save: writes a checkpoint and returns its path; here and in `tune`.
        """
        ...

    def due(self) -> bool:
        """Whether `tune` is to be called before the next update."""
        ...

    def tune(self, save: Callable[[], str]) -> bool:
        """Does its work; returns whether training goes on."""
        ...

    def note_divergence(self) -> None:
        """Is told that the loss is no longer a finite number, and that training ends."""
        ...

    def close(self) -> None:
        """Ends its records."""
        ...


class FixedHyperparameters:
    """A `Tuner` that leaves everything as it is."""

    def __init__(self, learner: Learner):
        del learner
        self.tracked: Mapping[str, Any] = {}

    def hear(self, task: str, episode_return: float, frames: int) -> None:
        pass

    def begin(self, save: Callable[[], str]) -> None:
        pass

    def due(self) -> bool:
        return False

    def tune(self, save: Callable[[], str]) -> bool:
        raise AssertionError("never due")

    def note_divergence(self) -> None:
        pass

    def close(self) -> None:
        pass


MakeTuner = Callable[[Learner], Tuner]

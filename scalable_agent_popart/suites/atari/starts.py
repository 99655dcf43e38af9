"""Atari from human starts: episodes that begin at recorded points of games somebody played.

This follows Nair et al. (2015) and van Hasselt et al. (2016). The agent plays on from the recorded
point until the game is over or has lasted 108,000 frames, including those before the start.
Only rewards after the start count. A file `<directory>/<game>.npz` holds the starts of one game, by
any player, as plain NumPy arrays without pickles:

  format    the string "atari-starts-1"
  game      the name of the game's ROM, such as "space_invaders"
  emulator  the program that saved the states, such as "ale-py 0.12.1"
  frames    int32 [N], frames of the game played before each start
  lengths   int64 [N], size of each state in bytes
  states    uint8 [sum(lengths)], the states one after the other

`tools/record_starts.py` plays games and writes the file. It also takes states recorded elsewhere by
`ale_py.ALEInterface.cloneSystemState().serialize()` during a game.
"""

import functools
import importlib.metadata
import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from environments import ArraySpec, StepOutput
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.suites.atari.emulator import Emulator, action_names, actions_of
from scalable_agent_popart.suites.checked import SerialEnvironments
from scalable_agent_popart.suites.suite import EnvironmentOptions

_FORMAT = "atari-starts-1"
_HOW_TO_RECORD = "tools/record_starts.py records starts"


def _emulator_version() -> str:
    return f"ale-py {importlib.metadata.version('ale-py')}"


def frames_before(states: Sequence[bytes]) -> np.ndarray:
    """Returns the number of frames of the game played before each state, int32 `[N]`."""
    import ale_py  # noqa: PLC0415 - other suites work without the emulator.

    return np.array([ale_py.ALEState(state).getEpisodeFrameNumber() for state in states], np.int32)


def write_starts(directory: str | Path, game: str, states: Sequence[bytes]) -> Path:
    """Writes a game's file, whole or not at all, and returns its path."""
    path = _path(directory, game)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    np.savez_compressed(
        temporary,
        format=_FORMAT,
        game=game,
        emulator=_emulator_version(),
        frames=frames_before(states),
        lengths=np.array([len(state) for state in states], np.int64),
        states=np.frombuffer(b"".join(states), np.uint8),
    )
    return temporary.replace(path)


def _path(directory: str | Path, game: str) -> Path:
    return Path(directory) / f"{game}.npz"


def check_starts(games: Sequence[str], options: EnvironmentOptions) -> None:
    """Raises UserError if games are to begin at starts, and not all of them have usable ones."""
    directory = options.human_starts_dir
    if not directory:
        return
    if missing := [game for game in games if not os.path.isfile(_path(directory, game))]:
        games_of_all = f"{len(missing)} of {len(games)} games ({', '.join(missing)})"
        raise UserError(f"{directory} holds no starts for {games_of_all}; {_HOW_TO_RECORD}")
    for game in games:
        read_starts(directory, game)


def read_starts(directory: str | Path, game: str) -> list[bytes]:
    """Reads a game's file; raises UserError if it is damaged or of another emulator's version."""
    path = _path(directory, game)
    try:
        with np.load(path, allow_pickle=False) as content:
            emulator = str(content["emulator"])
            ends = np.cumsum(content["lengths"])
            states = [part.tobytes() for part in np.split(content["states"], ends[:-1])]
    except Exception as error:  # A damaged file makes zipfile and NumPy raise anything.
        raise UserError(f"{path} cannot be read ({error}); {_HOW_TO_RECORD}") from error
    # A state carries no version, and another minor version may read another moment from it.
    if emulator.split(".")[:2] != _emulator_version().split(".")[:2]:
        message = f"{path} was recorded with {emulator}, and this is {_emulator_version()}"
        raise UserError(f"{message}; {_HOW_TO_RECORD}")
    return states


class Game:
    """A game as an `environments.Environment`; each of `starts` begins an episode."""

    def __init__(self, game: str, options: EnvironmentOptions, starts: Iterator[bytes]):
        self._emulator, self._starts = Emulator(game, options), starts
        self._actions = [*map(action_names().index, actions_of(game, options.action_set))]

    def reset(self) -> np.ndarray:
        return self._emulator.restore(next(self._starts))

    def step(self, action: int) -> tuple[float, bool, np.ndarray]:
        reward, over, observation = self._emulator.step(self._actions[action])
        return reward, over, self.reset() if over else observation

    def close(self) -> None:
        """Holds nothing to release."""


class AtariFromStarts(SerialEnvironments):
    """N copies of one game whose episodes begin at recorded starts; for evaluation.

    Copy j begins at starts j, j + N, j + 2N and so on, modulo their number. No lost life is `done`.
    """

    def __init__(self, game: str, task_ids: np.ndarray, options: EnvironmentOptions):
        """Loads the game and its starts."""
        states, size = read_starts(options.human_starts_dir, game), len(task_ids)
        starts = [itertools.islice(itertools.cycle(states), j, None, size) for j in range(size)]
        games = [functools.partial(Game, game, options, each) for each in starts]
        observation = ArraySpec((options.height, options.width, 1), np.uint8)
        super().__init__(games, task_ids, [game] * size, observation)
        # Emulators release the GIL, so that a thread for each game lets all play in parallel.
        self._thread = ThreadPoolExecutor(1)
        self._output: Future[StepOutput]

    def send(self, actions: np.ndarray) -> None:
        super().send(actions)
        self._output = self._thread.submit(super().receive)

    def receive(self) -> StepOutput:
        return self._output.result()

    def close(self) -> None:
        self._thread.shutdown()

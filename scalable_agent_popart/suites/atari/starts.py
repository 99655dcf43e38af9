"""Atari from human starts: episodes that begin at recorded points of games somebody played.

As in Nair et al. (2015) and van Hasselt et al. (2016): the agent plays on from the recorded
point until the game is over or has lasted 108,000 frames, including those before the start.
Only rewards after the start count.

The starts of the papers were never published. A file `<directory>/<game>.npz` holds those of
one game, of any player. It is an archive of plain NumPy arrays, nothing pickled:

  format    the string "atari-starts-1"
  game      the name of the game's ROM, such as "space_invaders"
  emulator  the program that saved the states, such as "ale-py 0.12.1"
  frames    int32 [N], frames of the game played before each start
  lengths   int64 [N], size of each state in bytes
  states    uint8 [sum(lengths)], the states one after the other

A state is what `ale_py.ALEInterface.cloneSystemState().serialize()` returns during a game. This
writes the file for a list `recorded` of states:

  states = [ale_py.ALEState(state) for state in recorded]
  np.savez_compressed(
      "starts/pong.npz",
      format="atari-starts-1",
      game="pong",
      emulator="ale-py " + importlib.metadata.version("ale-py"),
      frames=np.array([state.getEpisodeFrameNumber() for state in states], np.int32),
      lengths=np.array([len(state) for state in recorded], np.int64),
      states=np.frombuffer(b"".join(recorded), np.uint8),
  )
"""

import bisect
import concurrent.futures
import importlib.metadata
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import environments
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.suites import suite
from scalable_agent_popart.suites.atari.emulator import MAX_NOOPS, Emulator

_FORMAT = "atari-starts-1"
_ARRAYS = ("format", "game", "emulator", "frames", "lengths", "states")
_HOW_TO_RECORD = "tools/record_starts.py records starts"


@dataclass(frozen=True)
class Starts:
    """Points of one game to begin at.

    Attributes:
      game: name of its ROM.
      states: the emulator's state at each start, as `ALEState.serialize()` returns it.
      source: the file that they were read from, for messages.
    """

    game: str
    states: tuple[bytes, ...]
    source: str = field(default="recording", compare=False)

    @property
    def frames(self) -> np.ndarray:
        """Number of frames of the game played before each start, int32 `[N]`."""
        import ale_py  # noqa: PLC0415 - other suites work without the emulator.

        played = [ale_py.ALEState(state).getEpisodeFrameNumber() for state in self.states]
        return np.array(played, np.int32)

    def write(self, directory: str | Path) -> Path:
        """Writes the game's file, whole or not at all, and returns its path."""
        path = _path(directory, self.game)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        with open(temporary, "wb") as file:
            np.savez_compressed(
                file,
                format=_FORMAT,
                game=self.game,
                emulator=_emulator_version(),
                frames=self.frames,
                lengths=np.array([len(state) for state in self.states], np.int64),
                states=np.frombuffer(b"".join(self.states), np.uint8),
            )
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        return path


def _path(directory: str | Path, game: str) -> Path:
    return Path(directory) / f"{game}.npz"


def check_starts(directory: str | Path, games: Sequence[str]) -> None:
    """Raises UserError unless there are usable starts for each of the games."""
    missing = [game for game in games if not _path(directory, game).is_file()]
    if missing:
        named = ", ".join(missing[:3]) + (", ..." if missing[3:] else "")
        raise UserError(
            f"{directory} holds no starts for {len(missing)} of {len(games)} games ({named}); "
            f"{_HOW_TO_RECORD}"
        )
    for game in games:
        read_starts(directory, game)


def read_starts(directory: str | Path, game: str) -> Starts:
    """Reads a game's file.

    Raises:
      UserError: if it is missing, damaged, of another game, or of another emulator.
    """
    path = _path(directory, game)
    try:
        with np.load(path, allow_pickle=False) as archive:
            content = {name: archive[name] for name in _ARRAYS}
        found, of_game, emulator = (str(content[name]) for name in _ARRAYS[:3])
        frames, lengths, joined = (content[name] for name in _ARRAYS[3:])
        states = [part.tobytes() for part in np.split(joined, np.cumsum(lengths)[:-1])]
        starts = Starts(game, tuple(states), str(path))
        # The bytes of a state carry no version. They change with the emulator's minor versions,
        # and those of another version may be read as a state of another moment.
        if found != _FORMAT:
            problem = f"is of the format {found!r}, not {_FORMAT!r}"
        elif of_game != game:
            problem = f"holds starts of {of_game!r}"
        elif emulator.split(".")[:2] != _emulator_version().split(".")[:2]:
            problem = f"was recorded with {emulator}, and this is {_emulator_version()}"
        elif not np.array_equal(starts.frames, frames):
            problem = "holds no state of the emulator at a frame that it names"
        else:
            return starts
    except FileNotFoundError:
        problem = "is missing"
    except Exception as error:  # A damaged file makes zipfile, NumPy and ale-py raise anything.
        reason = error.strerror if isinstance(error, OSError) else None
        problem = f"cannot be read ({reason or 'damaged, or not a file of starts'})"
    raise UserError(f"{path} {problem}; {_HOW_TO_RECORD}")


def _emulator_version() -> str:
    return f"ale-py {importlib.metadata.version('ale-py')}"


class _Game:
    """A game as an `environments.Environment`; `begin` begins each of its episodes."""

    def __init__(self, emulator: Emulator, begin: Callable[[], np.ndarray]):
        self._emulator, self._begin = emulator, begin

    def reset(self) -> np.ndarray:
        return self._begin()

    def step(self, action: int) -> tuple[float, bool, np.ndarray]:
        reward, observation = self._emulator.step(action)
        over = self._emulator.over
        return reward, over, self._begin() if over else observation

    def close(self) -> None:
        """Holds nothing to release."""


class AtariFromStarts(environments.SerialEnvironments):
    """N copies of one game whose episodes begin at recorded starts; for evaluation.

    Copy j begins at starts j, j + N, j + 2N and so on, modulo their number, so that all starts
    are used equally. A lost life is not `done`.
    """

    def __init__(self, starts: Starts, task_ids: np.ndarray, options: suite.EnvironmentOptions):
        """Loads the game and tries every start.

        Args:
          starts: to begin at.
          task_ids: int32 `[N]`.
          options: the observation's size and action repeats.

        Raises:
          UserError: if one is no start of the game.
        """
        emulators = [Emulator(starts.game, options) for _ in task_ids]
        for i, state in enumerate(starts.states):
            fault = emulators[0].fault(state)
            if fault:
                raise UserError(f"{starts.source}: start {i} is {fault}; leave it out")

        def make_game(j: int) -> _Game:
            order = itertools.count(j, len(emulators))
            return _Game(
                emulators[j],
                lambda: emulators[j].restore(starts.states[next(order) % len(starts.states)]),
            )

        super().__init__([make_game(j) for j in range(len(emulators))], task_ids)
        # Emulators release the GIL, so that games with a thread each are played in parallel.
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._output: concurrent.futures.Future[environments.StepOutput]

    def send(self, actions: np.ndarray) -> None:
        super().send(actions)
        self._output = self._thread.submit(super().receive)

    def receive(self) -> environments.StepOutput:
        return self._output.result()

    def close(self) -> None:
        self._thread.shutdown()


def record_starts(
    game: str,
    act: Callable[[environments.StepOutput], int],
    num_starts: int,
    num_games: int,
    seed: int,
    options: suite.EnvironmentOptions,
) -> Starts:
    """Plays whole games, each after 0 to 30 no-ops, and samples starts from them.

    Args:
      game: name of its ROM.
      act: the player, called with outputs `[1, ...]` of an environment that restarts in the step
        that ends a game: `done` where a game begins.
      num_starts: sampled uniformly from all agent steps after which the game goes on.
      num_games: to play.
      seed: of the no-ops and the sample, below 2^31.
      options: the observation's size and action repeats.

    Returns:
      The starts, in random order: the first few are a uniform sample, too.

    Raises:
      UserError: if the games had fewer steps than `num_starts`.
    """
    generator = np.random.default_rng(seed)
    emulator, second = Emulator(game, options, seed), Emulator(game, options)
    # The states with the smallest of random keys, in the order of the keys.
    chosen: list[tuple[float, bytes]] = []
    played = environments.SerialEnvironments(
        [_Game(emulator, lambda: emulator.begin(int(generator.integers(MAX_NOOPS + 1))))],
        np.zeros(1, np.int32),
    )
    output = played.reset()
    while num_games:
        played.send(np.array([act(output)]))
        output = played.receive()
        if output.done[0]:
            num_games -= 1
            continue
        key = generator.random()
        if len(chosen) < num_starts or key < chosen[-1][0]:
            state = emulator.state
            # The frame that draws the screen may be the one that ends the game.
            if second.fault(state) is None:
                bisect.insort(chosen, (key, state))
                del chosen[num_starts:]
    if len(chosen) < num_starts:
        raise UserError(
            f"{game}: the games had only {len(chosen)} points to start from; ask for fewer "
            "starts or play more games"
        )
    return Starts(game, tuple(state for _, state in chosen))

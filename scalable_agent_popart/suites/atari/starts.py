"""Atari from human starts: episodes that begin at recorded points of games somebody played.

As in Nair et al. (2015) and van Hasselt et al. (2016): the agent plays on from the recorded
point until the game is over, or its 108,000 frames are, among them those played before the
start. Only rewards after the start count.

The starts of the papers were never published. A file `<directory>/<game>.npz` holds those of
one game, of whatever player. It is an archive of plain NumPy arrays, nothing pickled:

  format    the string "atari-starts-1"
  game      the name of the game's ROM, such as "space_invaders"
  emulator  what the states are of, such as "ale-py 0.12.1"
  frames    int32 [N], frames of the game played before each start
  lengths   int64 [N], size of each state in bytes
  states    uint8 [sum(lengths)], the states one after the other

A state is what `ale_py.ALEInterface.cloneSystemState().serialize()` returns while the game goes
on. From a list `recorded` of them:

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
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import environments
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.suites import suite
from scalable_agent_popart.suites.atari.emulator import BAD_STATE, MAX_NOOPS, Emulator

_FORMAT = "atari-starts-1"
_ARRAYS = ("format", "game", "emulator", "frames", "lengths", "states")
_HOW_TO_RECORD = "tools/record_starts.py records starts"


@dataclass(frozen=True)
class Starts:
    """Points of one game to begin at.

    Attributes:
      game: name of its ROM.
      states: the emulator's state at each, as `ALEState.serialize()` gives it.
      source: where they were read from, for messages.
    """

    game: str
    states: tuple[bytes, ...]
    source: str = field(default="recording", compare=False)

    @property
    def frames(self) -> np.ndarray:
        """Frames of the game played before each start, int32 `[N]`."""
        import ale_py  # noqa: PLC0415 - other suites work without the emulator.

        played = [ale_py.ALEState(state).getEpisodeFrameNumber() for state in self.states]
        return np.array(played, np.int32)

    def write(self, directory: str | Path) -> Path:
        """Writes the game's file, whole or not at all, and returns its path."""
        path = starts_path(directory, self.game)
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


def starts_path(directory: str | Path, game: str) -> Path:
    """Of the file that holds a game's starts."""
    return Path(directory) / f"{game}.npz"


def check_starts(directory: str | Path, games: Sequence[str]) -> None:
    """Raises UserError unless there are usable starts for each of the games."""
    if not Path(directory).is_dir():
        raise UserError(f"there is no directory {directory} of starts; {_HOW_TO_RECORD}")
    missing = [game for game in games if not starts_path(directory, game).is_file()]
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
    path = starts_path(directory, game)
    try:
        with np.load(path, allow_pickle=False) as archive:
            content = {name: archive[name] for name in _ARRAYS}
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; {_HOW_TO_RECORD}") from error
    except Exception as error:  # What a damaged file makes zipfile and NumPy raise is no list.
        reason = error.strerror if isinstance(error, OSError) else None
        raise UserError(
            f"{path} cannot be read ({reason or 'damaged, or not a file of starts'}); "
            f"{_HOW_TO_RECORD}"
        ) from error
    problem = _problem(content, game)
    if problem:
        raise UserError(f"{path} {problem}; {_HOW_TO_RECORD}")
    parts = np.split(content["states"], np.cumsum(content["lengths"])[:-1])
    starts = Starts(game, tuple(part.tobytes() for part in parts), str(path))
    try:
        agree = np.array_equal(starts.frames, content["frames"])
    except BAD_STATE:
        agree = False
    if not agree:
        raise UserError(f"{path} holds what is no state of the emulator at the frame it names")
    return starts


def _problem(content: Mapping[str, np.ndarray], game: str) -> str | None:
    """What is wrong with a file's arrays; None if nothing is."""
    found, of_game, emulator = (str(content[name]) for name in ("format", "game", "emulator"))
    if found != _FORMAT:
        return f"is of the format {found!r}, not {_FORMAT!r}"
    if of_game != game:
        return f"holds starts of {of_game!r}"
    # The bytes of a state carry no version. Which there are changes with the emulator's
    # minor versions, and a state of another may be taken for a state of another moment.
    if emulator.split(".")[:2] != _emulator_version().split(".")[:2]:
        return f"was recorded with {emulator}, and this is {_emulator_version()}"
    frames, lengths, states = (content[name] for name in ("frames", "lengths", "states"))
    if lengths.size == 0:
        return "is empty"
    fit = (
        lengths.ndim == states.ndim == 1
        and frames.shape == lengths.shape
        and lengths.dtype.kind == frames.dtype.kind == "i"
        and states.dtype == np.uint8
        and lengths.min() > 0
        and lengths.sum() == states.size
    )
    return None if fit else "is damaged: its arrays do not fit together"


def _emulator_version() -> str:
    return f"ale-py {importlib.metadata.version('ale-py')}"


class AtariFromStarts:
    """N copies of one game whose episodes begin at recorded starts; for evaluation.

    Copy j begins at starts j, j + N, j + 2N and so on, and round again, so that all starts are
    used equally. A lost life is not `done`.
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
        self.task_ids = task_ids
        self._starts = starts.states
        self._emulators = [Emulator(starts.game, options) for _ in task_ids]
        for i, state in enumerate(starts.states):
            fault = self._emulators[0].fault(state)
            if fault:
                raise UserError(f"{starts.source}: start {i} is {fault}; leave it out")
        self._counter = environments.EpisodeCounter(len(task_ids))
        self._num_begun = np.zeros(len(task_ids), np.int64)
        # Emulators release the GIL, so that games with a thread each are played at once.
        self._worker = concurrent.futures.ThreadPoolExecutor(1)
        self._pending: concurrent.futures.Future[environments.StepOutput]

    def reset(self) -> environments.StepOutput:
        self._num_begun[:] = 0
        first = np.stack([self._begin(j) for j in range(len(self._emulators))])
        return environments.initial_step(self._counter, first)

    def send(self, actions: np.ndarray) -> None:
        self._pending = self._worker.submit(
            _step, self._emulators, actions.tolist(), self._counter, self._begin
        )

    def receive(self) -> environments.StepOutput:
        return self._pending.result()

    def close(self) -> None:
        self._worker.shutdown()

    def _begin(self, j: int) -> np.ndarray:
        place = j + self._num_begun[j] * len(self._emulators)
        self._num_begun[j] += 1
        return self._emulators[j].restore(self._starts[place % len(self._starts)])


def _step(
    emulators: Sequence[Emulator],
    actions: Sequence[int],
    counter: environments.EpisodeCounter,
    begin: Callable[[int], np.ndarray],
) -> environments.StepOutput:
    """Steps each; where a game ends, `begin` begins emulator i's next and gives what is seen."""
    steps = [emulator.step(action) for emulator, action in zip(emulators, actions, strict=True)]
    rewards = np.array([reward for reward, _ in steps], np.float32)
    over = np.array([emulator.over for emulator in emulators])
    seen = [begin(i) if over[i] else observation for i, (_, observation) in enumerate(steps)]
    return environments.StepOutput(rewards, counter.step(rewards, over), over, np.stack(seen))


def record_starts(
    game: str,
    act: Callable[[environments.StepOutput], int],
    num_starts: int,
    num_games: int,
    seed: int,
    options: suite.EnvironmentOptions,
) -> Starts:
    """Plays whole games, each after 0 to 30 no-ops, and takes starts from them at random.

    Args:
      game: name of its ROM.
      act: the player, which gets outputs `[1, ...]` of an environment that restarts in the step
        that ends a game: `done` where a game begins.
      num_starts: size of the sample of all agent steps after which the game goes on.
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
    # Of all states those with the smallest of random keys, in the order of the keys.
    chosen: list[tuple[float, bytes]] = []
    counter = environments.EpisodeCounter(1)

    def begin(_: int) -> np.ndarray:
        return emulator.begin(int(generator.integers(MAX_NOOPS + 1)))

    output = environments.initial_step(counter, begin(0)[np.newaxis])
    while num_games:
        output = _step([emulator], [act(output)], counter, begin)
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

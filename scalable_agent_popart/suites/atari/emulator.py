"""A game of Atari whose state, unlike that of a vector environment, can be saved and restored."""

import functools
from pathlib import Path

import numpy as np

from scalable_agent_popart.suites import suite

MAX_FRAMES_PER_GAME = 108_000
MAX_NOOPS = 30
# These games begin at another frame than 0, because the emulator presses buttons to start them.
# Machines may differ in how many it needs: Double Dunk has begun at frame 13 and at frame 21.
BEGUN_BY_BUTTONS = frozenset(
    ["air_raid", "berzerk", "double_dunk", "name_this_game", "surround", "yars_revenge"]
)
_NOOP = 0
NUM_ACTIONS = 18
# The names of the actions that have an effect, by game.
EFFECTIVE_ACTIONS = {
    game: tuple(names.split()) for game, names in suite.read_table("atari57_minimal_actions.csv")
}


def action_names() -> tuple[str, ...]:
    """Returns the names of all actions, by their numbers."""
    import ale_py  # noqa: PLC0415 - other suites work without the emulator.

    return tuple(ale_py.Action.__members__)[:NUM_ACTIONS]


def actions_of(game: str, action_set: str) -> tuple[str, ...]:
    """Returns the names of a set's actions in a game."""
    return EFFECTIVE_ACTIONS[game] if action_set == suite.MINIMAL else action_names()


class Emulator:
    """One game, played and preprocessed bit for bit as by `atari57.AtariEnvironments`.

    Its 108,000 frames include those of no-ops and buttons at the start, unlike theirs.
    """

    def __init__(self, game: str, options: suite.EnvironmentOptions, seed: int = 0):
        """Loads the game by the name of its ROM and begins it; `seed` is below 2^31."""
        import ale_py  # noqa: PLC0415 - other suites work without the emulator.
        import cv2  # noqa: PLC0415
        from ale_py import roms  # noqa: PLC0415

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._make_state = ale_py.ALEState
        self._num_repeats = options.num_action_repeats
        self._resize = functools.partial(
            cv2.resize, dsize=(options.width, options.height), interpolation=cv2.INTER_AREA
        )
        self._ale = ale_py.ALEInterface()
        self._ale.setInt("random_seed", seed)
        self._ale.setFloat("repeat_action_probability", 0.0)
        self._ale.setInt("max_num_frames_per_episode", MAX_FRAMES_PER_GAME)
        self._ale.loadROM(Path(roms.get_rom_path(game) or game))
        self._ale.reset_game()

    @property
    def frame(self) -> int:
        """The number of frames since the game was loaded or reset, with those that begin it."""
        return self._ale.getEpisodeFrameNumber()

    @property
    def state(self) -> bytes:
        """The present state, for `restore`."""
        return self._ale.cloneSystemState().serialize()

    def begin(self, num_noops: int) -> np.ndarray:
        """Begins a new game with frames of no-ops; returns its first observation."""
        self._ale.reset_game()
        for _ in range(num_noops):
            self._ale.act(_NOOP)
        return self._observation(self._ale.getScreenGrayscale())

    def restore(self, state: bytes) -> np.ndarray:
        """Resumes from a state; returns the first observation, uint8 `[height, width, 1]`.

        A state holds no screen, so a frame of no-op is played, and its reward ignored. If a game
        redraws only parts of the screen, pixels of another may show at first.
        """
        # Q*bert would continue differently in an emulator that has played no frame.
        self.begin(num_noops=1)
        self._ale.restoreSystemState(self._make_state(state))
        self._ale.act(_NOOP)
        return self._observation(self._ale.getScreenGrayscale())

    def step(self, action: int) -> tuple[float, bool, np.ndarray]:
        """Repeats one of the 18 actions, up to the game's end; unused ones are no-ops.

        Returns the raw reward, whether the game has ended or reached its limit of frames, and the
        pixelwise maximum of the last two frames, uint8 `[height, width, 1]`.
        """
        reward, over, screens = 0, False, []
        for remaining in reversed(range(self._num_repeats)):
            reward += self._ale.act(action)
            over = self._ale.game_over()
            if remaining < 2 or over:
                screens.append(self._ale.getScreenGrayscale())
            if over:
                break
        return float(reward), over, self._observation(np.maximum.reduce(screens))

    def fault(self, state: bytes) -> str | None:
        """Returns why a game cannot resume from a state, or None if it can."""
        try:
            self.restore(state)
        except (SystemError, RuntimeError, ValueError, MemoryError):
            return "no state of this game"
        return "a state in which the game is over" if self._ale.game_over() else None

    def _observation(self, screen: np.ndarray) -> np.ndarray:
        return self._resize(screen)[..., np.newaxis]

"""Atari-57: 57 games of the Arcade Learning Environment, emulated by `ale-py`.

Preprocessing as in the paper's appendix: 84x84 grey frames, each the maximum of the last two,
stacks of four, four action repeats. A lost life ends the training episode but not the game.
Where the appendix is silent, as is usual: the full set of 18 actions, up to 30 no-ops at a
game's start, at most 108,000 frames a game after them, and no sticky actions.

Random and human scores are those of DQN Zoo (`dqn_zoo/atari_data.py`), no-op starts; for human
starts those of the papers their table names.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

import environments
from scalable_agent_popart.suites import search_space, suite
from scalable_agent_popart.suites.atari import emulator as atari_emulator
from scalable_agent_popart.suites.atari import starts as atari_starts

_NUM_ACTIONS = 18


class AtariEnvironments:
    """N copies of one game, stepped by `ale-py`'s own threads without holding the GIL."""

    def __init__(
        self,
        game: str,
        task_ids: np.ndarray,
        seeds: Sequence[int],
        options: suite.EnvironmentOptions,
    ):
        """Loads the game.

        Args:
          game: name of its ROM, such as `space_invaders`.
          task_ids: int32 `[N]`.
          seeds: one for each environment.
          options: the observation's size, action repeats, and whether a lost life is `done`.
        """
        import ale_py  # noqa: PLC0415 - other suites work without the emulator.

        self.task_ids = task_ids
        self._seeds = np.asarray(seeds, np.int32)
        self._counter = environments.EpisodeCounter(len(task_ids))
        self._game_frame = np.zeros(len(task_ids), np.int32)
        self._environments: Any = ale_py.AtariVectorEnv(
            game,
            num_envs=len(task_ids),
            num_threads=1,  # Another actor thread has work for the other cores.
            max_num_frames_per_episode=atari_emulator.MAX_FRAMES_PER_GAME,
            full_action_space=True,
            # Restarting in the step after a game's end would ignore that step's action, and
            # the learner would be taught that it had been taken.
            autoreset_mode="SameStep",
            img_height=options.height,
            img_width=options.width,
            stack_num=1,  # The agent stacks them.
            frameskip=options.num_action_repeats,
            noop_max=atari_emulator.MAX_NOOPS + 1,  # The emulator draws numbers below it.
            # Reports a lost life as terminated and goes on; `episodic_life` would restart.
            life_loss_info=options.training,
            reward_clipping=False,
            use_fire_reset=False,
        )
        # `send` takes places in the game's own list of actions, which may be shorter than the
        # 18 (Skiing has no fire button). As in the emulator itself, the others do nothing.
        legal = self._environments.ale.get_action_set()
        self._place_of_action = np.array(
            [
                legal.index(action if action in legal else ale_py.Action.NOOP)
                for action in list(ale_py.Action.__members__.values())[:_NUM_ACTIONS]
            ],
            np.int32,
        )

    def reset(self) -> environments.StepOutput:
        frames, info = self._environments.reset(seed=self._seeds)
        self._game_frame = info["episode_frame_number"]
        return environments.initial_step(self._counter, _channels_last(frames))

    def send(self, actions: np.ndarray) -> None:
        self._environments.send(self._place_of_action[actions])

    def receive(self) -> environments.StepOutput:
        frames, rewards, terminated, truncated, info = self._environments.recv()
        done = terminated | truncated
        # A lost life leaves the game's frame counter running, a new game starts it again. The
        # count of lives would not do: some games never show one.
        game_over = done & (info["episode_frame_number"] <= self._game_frame)
        self._game_frame = info["episode_frame_number"]
        rewards = rewards.astype(np.float32)
        return environments.StepOutput(
            reward=rewards,
            info=self._counter.step(rewards, game_over),
            done=done,
            observation=_channels_last(frames),
        )

    def close(self) -> None:
        self._environments = None  # Its destructor joins the emulator's threads.


def _channels_last(frames: np.ndarray) -> np.ndarray:
    """`[N, 1, height, width]` -> `[N, height, width, 1]`."""
    return np.moveaxis(frames, 1, -1)


def _make_environments(
    games: Sequence[str],
    task_ids: np.ndarray,
    seeds: Sequence[int],
    options: suite.EnvironmentOptions,
) -> environments.EnvironmentPool:
    """A batch of copies for each run of the same game, side by side."""
    firsts = [i for i, game in enumerate(games) if i == 0 or game != games[i - 1]]
    members: list[environments.BatchedEnvironment] = []
    for first, end in zip(firsts, [*firsts[1:], len(games)], strict=True):
        game, own_ids = games[first], task_ids[first:end]
        if options.human_starts_dir:
            starts = atari_starts.read_starts(options.human_starts_dir, game)
            members.append(atari_starts.AtariFromStarts(starts, own_ids, options))
        else:
            members.append(AtariEnvironments(game, own_ids, seeds[first:end], options))
    return environments.Lockstep(*members)


def _check(games: Sequence[str], options: suite.EnvironmentOptions) -> None:
    """Raises UserError if there are not the starts that games are to begin at."""
    if options.human_starts_dir:
        atari_starts.check_starts(options.human_starts_dir, games)


_SCORES = suite.read_reference_scores("atari57_scores.csv")
_HUMAN_STARTS_SCORES = suite.read_reference_scores("atari57_human_starts_scores.csv")

SUITE = suite.Suite(
    name="atari57",
    title="Atari-57",
    tasks=tuple(_SCORES),
    action_sets={"full": _NUM_ACTIONS},
    num_channels=1,
    stacks_frames=True,
    scalable=True,
    headline="median",
    total_frames=57 * 200_000_000,
    reference_scores=_SCORES,
    human_starts_scores=_HUMAN_STARTS_SCORES,
    own_flags=("human_starts_dir",),
    defaults={
        "test_num_episodes": 200,
        "unroll_length": 20,
        "batch_size": 32,
        "num_action_repeats": 4,
        "height": 84,
        "width": 84,
        "network": "deep",
        "use_lstm": False,
        "action_set": "full",
        "reward_clipping": "abs_one",
        "learning_rate": 6e-4,
        "entropy_cost": 0.01,
        "epsilon": 0.01,
        "max_grad_norm": 40.0,
        "popart_step_size": 3e-4,
        "pbt_burn_in_frames": 20_000_000,
        "pbt_episodes": 5000,
    },
    environment_factory=_make_environments,
    search_space=search_space.PAPER_ATARI,
    check_tasks=_check,
    requires={
        "ale_py": "pip install ale-py",
        "gymnasium": "pip install gymnasium",
        "cv2": "pip install opencv-python-headless",
    },
)

"""Atari-57: 57 games of the Arcade Learning Environment, emulated by `ale-py`.

Preprocessing is that of the paper's appendix: 84x84 grey frames, each the maximum of the last
two, stacks of four, four action repeats. A lost life ends the training episode but not the game.
The appendix is silent on the rest, which is as usual: the full set of 18 actions, or by option
those that have an effect in the game, and no sticky ones. A game starts with 1 to 30 no-ops, and
lasts at most 108,000 frames after them. Scores for no-op starts are those of DQN Zoo, for human
starts those of the papers that their table names.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from environments import BatchedEnvironment, EpisodeCounter, Lockstep, StepOutput, report
from scalable_agent_popart.suites.atari import emulator as atari_emulator
from scalable_agent_popart.suites.atari.starts import AtariFromStarts, check_starts
from scalable_agent_popart.suites.search_space import PAPER_ATARI
from scalable_agent_popart.suites.suite import EnvironmentOptions, Suite, read_scores

_SCREEN = (210, 160)  # Height and width in pixels.


class AtariEnvironments:
    """N copies of one game, stepped by `ale-py`'s own threads without holding the GIL."""

    def __init__(
        self,
        game: str,
        task_ids: np.ndarray,
        seeds: np.ndarray,
        options: EnvironmentOptions,
        num_threads: int = 1,
        in_colour: bool = False,
    ):
        """Loads the game by the name of its ROM, such as `space_invaders`.

        In colour, images have the size and colours of the emulator's screen.
        """
        import ale_py  # noqa: PLC0415 - other suites work without the emulator.

        self.task_ids = task_ids
        # The emulator loads a game again to take a seed, which is half of the work of a start:
        # https://github.com/Farama-Foundation/Arcade-Learning-Environment/pull/740
        self._seeds = seeds if options.reproducible else None
        self._counter = EpisodeCounter(len(task_ids))
        self._training = options.training
        begun = game in atari_emulator.BEGUN_BY_BUTTONS
        self._first_frame = atari_emulator.Emulator(game, options).frame if begun else 0
        self._game_frame, self._lives = np.zeros((2, len(task_ids)), np.int32)
        self._environments: Any = ale_py.AtariVectorEnv(
            game,
            num_envs=len(task_ids),
            num_threads=num_threads,
            max_num_frames_per_episode=atari_emulator.MAX_FRAMES_PER_GAME,
            full_action_space=True,
            autoreset_mode="SameStep",  # A later restart would silently ignore an action.
            img_height=_SCREEN[0] if in_colour else options.height,
            img_width=_SCREEN[1] if in_colour else options.width,
            grayscale=not in_colour,
            stack_num=1,  # The agent stacks them.
            frameskip=options.num_action_repeats,
            noop_max=atari_emulator.MAX_NOOPS + 1,  # Exclusive.
            # A lost life counts as terminated, unless its number is 0, and the game continues. With
            # `episodic_life` it would restart.
            life_loss_info=options.training,
            reward_clipping=False,
            use_fire_reset=False,
        )
        # `send` takes indices into the game's own actions, which may be fewer than 18 (Skiing has
        # no fire button). The others do nothing, as in the emulator itself.
        indices = {
            action.name: i for i, action in enumerate(self._environments.ale.get_action_set())
        }
        names = atari_emulator.actions_of(game, options.action_set)
        self._index_of_action = np.array(
            [indices.get(name, indices["NOOP"]) for name in names], np.int32
        )
        report(len(task_ids))

    def reset(self) -> StepOutput:
        frames, info = self._with_noops(*self._environments.reset(seed=self._seeds))
        self._game_frame, self._lives = info["episode_frame_number"], info["lives"]
        return self._counter.start(_images(frames))

    def send(self, actions: np.ndarray) -> None:
        self._environments.send(self._index_of_action[actions])

    def receive(self) -> StepOutput:
        frames, rewards, terminated, truncated, info = self._environments.recv()
        done = terminated | truncated
        if self._training:  # Bank Heist has a last life whose number is 0.
            done |= info["lives"] < self._lives
        # A new game resets its frame counter. Some games never report any lives.
        game_over = done & (info["episode_frame_number"] <= self._game_frame)
        frames, info = self._with_noops(frames, info)
        self._game_frame, self._lives = info["episode_frame_number"], info["lives"]
        rewards = rewards.astype(np.float32)
        info = self._counter.step(rewards, game_over)
        return StepOutput(rewards, info, done, _images(frames))

    def _with_noops(self, frames: np.ndarray, info: dict[str, Any]) -> tuple[np.ndarray, Any]:
        """Begins games again that had no no-op at their start, since the emulator draws 0 to 30."""
        while (without := info["episode_frame_number"] == self._first_frame).any():
            frames, info = self._environments.reset(options={"reset_mask": without})
        return frames, info

    def close(self) -> None:
        self._environments = None  # Its destructor joins the emulator's threads.


def _images(frames: np.ndarray) -> np.ndarray:
    """Turns stacks of one frame, `[N, 1, H, W]` or in colour `[N, 1, H, W, 3]`, into images."""
    return np.moveaxis(frames, 1, -1) if frames.ndim == 4 else frames[:, 0]


def _make_film(game: str, seed: int, options: EnvironmentOptions) -> AtariEnvironments:
    """Makes a game in colour; the emulator is deterministic, so that it plays alike."""
    return AtariEnvironments(game, np.zeros(1, np.int32), np.array([seed]), options, in_colour=True)


def _make_environments(
    games: Sequence[str], task_ids: np.ndarray, seeds: Sequence[int], options: EnvironmentOptions
) -> Lockstep:
    """Makes one batched environment for each group of neighbouring copies of a game."""
    groups = [[*copies] for _, copies in itertools.groupby(range(len(games)), games.__getitem__)]
    num_threads = max(1, options.num_threads // len(groups))  # Games step at the same time as well.
    members: list[BatchedEnvironment] = []
    for copies in groups:
        game, ids, threads = games[copies[0]], task_ids[copies], min(num_threads, len(copies))
        if options.human_starts_dir:
            members.append(AtariFromStarts(game, ids, options))
        else:
            seeds_of_game = np.array(seeds, np.int32)[copies]
            members.append(AtariEnvironments(game, ids, seeds_of_game, options, threads))
    return Lockstep(*members)


_SCORES = read_scores("atari57_scores.csv")

SUITE = Suite(
    name="atari57",
    title="Atari-57",
    tasks=tuple(_SCORES),
    action_sets={"full": atari_emulator.NUM_ACTIONS},
    num_channels=1,
    stacks_frames=True,
    scalable=True,
    headline="median",
    total_frames=57 * 200_000_000,
    usual_num_actors_with_gpu=256,  # An H100 trained 1.5 times as fast as with 64.
    reference_scores=_SCORES,
    human_starts_scores=read_scores("atari57_human_starts_scores.csv"),
    own_flags=("human_starts_dir",),
    defaults={
        "num_action_repeats": 4,
        "height": 84,
        "width": 84,
        "reward_clipping": "abs_one",
        "network": "deep",
        "learning_rate": 6e-4,
        "max_grad_norm": 40.0,
        "pbt_burn_in_frames": 20_000_000,
        "pbt_episodes": 5000,
    },
    environment_factory=_make_environments,
    film_factory=_make_film,
    action_names=atari_emulator.action_names,
    effective_actions=atari_emulator.EFFECTIVE_ACTIONS,
    search_space=PAPER_ATARI,
    check_tasks=check_starts,
    requires={
        "ale_py": "pip install ale-py",
        "gymnasium": "pip install gymnasium",
        "cv2": "pip install opencv-python-headless",
    },
)

"""Measures the training throughput of Sample Factory's APPO with V-trace.

  python sample_factory_appo.py --seconds=60 --json=sample_factory.json

The rate is that of the agent steps, each of four frames, that the learner takes gradient steps on
while workers play. Each counts once, after a warm-up, if the learner holds it valid.

Without `--tuned` the workers, threads and queues are Sample Factory's defaults, with 32
environments on two workers. All further options go to Sample Factory. The environments are
`gymnasium`'s Atari preprocessing around `ale-py`, one object each. With `--overhead` they are 64
that cost nothing, and the network's torso is one linear layer.
"""

import argparse
import multiprocessing
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import setting
import torch
from sample_factory.algo.learning import learner_worker
from sample_factory.algo.learning.learner import Learner
from sample_factory.algo.utils.context import global_model_factory
from sample_factory.algo.utils.misc import TRAIN_STATS, ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.envs.env_wrappers import NumpyObsWrapper
from sample_factory.model.actor_critic import ActorCritic, default_make_actor_critic_func
from sample_factory.model.encoder import Encoder
from sample_factory.train import make_runner
from sample_factory.utils.attr_dict import AttrDict

SETTING = {
    "device": "cpu",
    "encoder_conv_architecture": "resnet_impala",  # IMPALA's deep network.
    "encoder_conv_mlp_layers": 256,
    "nonlinearity": "relu",
    "use_rnn": False,
    "with_vtrace": True,
    "rollout": setting.UNROLL_LENGTH,
    "recurrence": setting.UNROLL_LENGTH,  # V-trace asks for whole rollouts.
    "batch_size": setting.STEPS_PER_UPDATE,
    "num_epochs": 1,
    "num_batches_per_epoch": 1,
    "normalize_returns": False,  # Not possible with V-trace.
    "normalize_input": False,
    "obs_scale": 255.0,
    "env_frameskip": setting.FRAME_SKIP,
    "gamma": setting.DISCOUNT,
    "reward_clip": 1.0,
    "exploration_loss_coeff": setting.ENTROPY_COST,
}
# OMP_WAIT_POLICY=PASSIVE belongs to it: threads that spin while they wait take the workers' cores.
TUNED: dict[str, Any] = {"channels_last": True, "torch_threads": 2}


class VtraceLearner(Learner):
    """The learner, with statistics of every update that work with V-trace."""

    def _should_save_summaries(self) -> bool:
        return True

    def _record_summaries(self, train_loop_vars: AttrDict) -> AttrDict:
        """Reports on an update; the original asks for GAE's advantages, which V-trace lacks."""
        parameters = sum(weight.numel() for weight in self.actor_critic.parameters())
        update = (setting.now(), int(train_loop_vars.mb.valids.sum()))
        return AttrDict(update=update, parameters=parameters)


def make_environment(
    name: str, cfg: AttrDict, env_config: Any = None, render_mode: str | None = None
) -> gymnasium.Env:
    """Makes a game whose observations are `[4, 84, 84]` bytes."""
    game = setting.make_game(render_mode)
    return NumpyObsWrapper(gymnasium.wrappers.FrameStack(game, setting.STACKED_FRAMES))


class CostlessEnvironment(gymnasium.Env):
    """Shows the same image `[4, 84, 84]` again and again, in episodes of 1,000 steps."""

    observation_space = gymnasium.spaces.Box(
        0, 255, (setting.STACKED_FRAMES, setting.FRAME_SIZE, setting.FRAME_SIZE), np.uint8
    )
    action_space = gymnasium.spaces.Discrete(setting.NUM_ACTIONS)
    render_mode = None

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._image = self.observation_space.sample()
        self._steps = 0

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self._steps = 0
        return self._image, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._image, 1.0, self._steps == 1000, False, {}


class LinearEncoder(Encoder):
    """A linear layer on two rows of pixels in the middle."""

    def __init__(self, cfg: AttrDict, observation_space: gymnasium.Space):
        super().__init__(cfg)
        self._linear = torch.nn.Linear(2 * setting.FRAME_SIZE * setting.STACKED_FRAMES, 256)

    def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        """Maps images `[N, 4, 84, 84]`, which were scaled to [0, 1], to `[N, 256]`."""
        pixels = observations["obs"][:, :, setting.MIDDLE_ROWS]
        return torch.relu(self._linear(pixels.flatten(1)))

    def get_out_size(self) -> int:
        return 256


def make_actor_critic(cfg: AttrDict, *spaces: gymnasium.Space) -> ActorCritic:
    """Makes Sample Factory's own network, for the learner's process and the one that acts."""
    if cfg.torch_threads:
        torch.set_num_threads(cfg.torch_threads)
    network = default_make_actor_critic_func(cfg, *spaces)
    return network.to(memory_format=torch.channels_last) if cfg.channels_last else network


def make_config(
    settings: dict[str, Any],
    rest: list[str],
    change_defaults: Callable[[str, argparse.ArgumentParser], None] | None = None,
) -> AttrDict:
    """Makes Sample Factory's settings of its defaults, ours, and the rest of the command line."""
    arguments = [f"--{name}={value}" for name, value in settings.items()] + rest
    parser, known = parse_sf_args(arguments)
    if change_defaults:
        change_defaults(known.env, parser)
    # These tune the network in `make_actor_critic`.
    parser.add_argument("--channels_last", type=lambda text: text == "True", default=False)
    parser.add_argument("--torch_threads", type=int, default=0, help="0 leaves it as it is")
    return parse_full_cfg(parser, arguments)


def main() -> int:
    """Trains until there are updates enough, and reports."""
    setting.heed_signals()
    options, rest = setting.parser(__doc__).parse_known_args()
    num_environments = setting.NUM_ENVIRONMENTS
    environment: Any = make_environment
    if options.overhead:
        num_environments, environment = setting.OVERHEAD_ENVIRONMENTS, CostlessEnvironment
        global_model_factory().register_encoder_factory(LinearEncoder)
    settings = {"num_workers": 2, "num_envs_per_worker": num_environments // 2}
    settings |= TUNED if options.tuned else {}
    updates: setting.Updates = []
    parameters: set[int] = set()

    def on_update(runner: Any, message: dict[str, Any], policy: int) -> None:
        updates.append(message[TRAIN_STATS].update)
        parameters.add(message[TRAIN_STATS].parameters)
        if setting.complete(updates, options.seconds):
            runner.cfg.train_for_env_steps = 0  # Ends training at the next update.

    register_env("pong", environment)
    global_model_factory().register_actor_critic_factory(make_actor_critic)
    learner_worker.Learner = VtraceLearner
    with tempfile.TemporaryDirectory() as directory:
        where = {"env": "pong", "experiment": "throughput", "train_dir": directory}
        _, runner = make_runner(make_config({**where, **SETTING, **settings}, rest))
        runner.policy_msg_handlers[TRAIN_STATS] = [on_update]
        status = runner.init()
        if status == ExperimentStatus.SUCCESS:
            status = runner.run()
        for process in multiprocessing.active_children():
            process.join()  # When interrupted, they save before they end.
    if status != ExperimentStatus.SUCCESS:
        return 1
    setting.report(updates, options, parameters.pop(), settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measures the training throughput of RLlib's IMPALA.

  python rllib_impala.py --seconds=60 --json=rllib.json

The rate is that of the agent steps, each of four frames, that the learner takes gradient steps on
while environment runners play. Each counts once, after a warm-up. The step that RLlib appends to
every rollout to bootstrap from does not count, and nor do rollouts that it drops.

Without `--tuned` the runners, learner and queues are RLlib's defaults, with 32 environments in
all. The environments are `gymnasium`'s Atari preprocessing around `ale-py`, one object each, in a
synchronous vector environment.
"""

import os
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import gymnasium
import ray
import setting
import torch
from ray.rllib.algorithms.impala import IMPALA, IMPALAConfig
from ray.rllib.algorithms.impala.torch.impala_torch_learner import IMPALATorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.tune.registry import register_env
from torch import nn

DEFAULTS: dict[str, Any] = {
    "num_env_runners": 2,
    "num_envs_per_env_runner": setting.NUM_ENVIRONMENTS // 2,
    "channels_last": False,
}
TUNED: dict[str, Any] = {"channels_last": True, "num_learners": 0}


class ResidualBlock(nn.Module):
    """Computes x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(torch.relu(inputs))
        return inputs + self.second(torch.relu(hidden))


class DeepNetwork(TorchRLModule, ValueFunctionAPI):
    """IMPALA's deep network on bytes `[N, 4, 84, 84]`, with policy and value heads."""

    def setup(self) -> None:
        layers: list[nn.Module] = []
        channels, size = setting.STACKED_FRAMES, setting.FRAME_SIZE
        for section in (16, 32, 32):
            layers += [nn.Conv2d(channels, section, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
            layers += [ResidualBlock(section), ResidualBlock(section)]
            channels, size = section, (size + 1) // 2
        layers += [nn.ReLU(), nn.Flatten(), nn.Linear(size * size * channels, 256), nn.ReLU()]
        self.torso = nn.Sequential(*layers)
        self.policy = nn.Linear(256, self.action_space.n)
        self.value = nn.Linear(256, 1)
        if self.model_config["channels_last"]:
            self.to(memory_format=torch.channels_last)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, torch.Tensor]:
        embeddings = self.torso(batch[Columns.OBS].float() / 255.0)
        logits = self.policy(embeddings)
        return {Columns.ACTION_DIST_INPUTS: logits, Columns.EMBEDDINGS: embeddings}

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            outputs = self._forward(batch)
        del outputs[Columns.EMBEDDINGS]  # The rest goes to the learner with the rollouts.
        return outputs

    def compute_values(
        self, batch: dict[str, Any], embeddings: torch.Tensor | None = None
    ) -> torch.Tensor:
        if embeddings is None:
            embeddings = self._forward(batch)[Columns.EMBEDDINGS]
        return self.value(embeddings).squeeze(-1)


class CountingLearner(IMPALATorchLearner):
    """The learner, with a list of its updates."""

    def build(self) -> None:
        self.updates: setting.Updates = []
        super().build()

    def compute_loss_for_module(self, *, batch: dict[str, Any], **kwargs: Any) -> torch.Tensor:
        self._steps = int(batch[Columns.LOSS_MASK].sum())
        return super().compute_loss_for_module(batch=batch, **kwargs)

    def apply_gradients(self, gradients_dict: dict[Any, torch.Tensor]) -> None:
        super().apply_gradients(gradients_dict)
        self.updates.append((setting.now(), self._steps))

    def shutdown(self) -> None:
        super().shutdown()
        # RLlib does not wait for a slow update, and a thread at work aborts the exit.
        self._learner_thread.join(60)


def make_environment(config: dict[str, Any]) -> gymnasium.Env:
    """Makes a game with clipped rewards, whose observations are `[4, 84, 84]` bytes."""
    environment = gymnasium.wrappers.FrameStackObservation(
        setting.make_game(), setting.STACKED_FRAMES
    )
    return gymnasium.wrappers.ClipReward(environment, -1.0, 1.0)


def make_config(channels_last: bool, **settings: Any) -> IMPALAConfig:
    """Makes RLlib's configuration of the common setting and RLlib's own settings."""
    network = RLModuleSpec(module_class=DeepNetwork, model_config={"channels_last": channels_last})
    config = (
        IMPALAConfig()
        .environment("atari")
        .env_runners(rollout_fragment_length=setting.UNROLL_LENGTH)
        .training(
            train_batch_size_per_learner=setting.STEPS_PER_UPDATE,
            gamma=setting.DISCOUNT,
            entropy_coeff=setting.ENTROPY_COST,
        )
        .learners(learner_class=CountingLearner)
        .rl_module(rl_module_spec=network)
        .reporting(min_time_s_per_iteration=2)
    )
    return config.update_from_dict(settings)


def main() -> None:
    """Trains until there are updates enough, and reports."""
    options = setting.parser(__doc__).parse_args()
    settings = {**DEFAULTS, **(TUNED if options.tuned else {})}

    # Two runners and a learner ask for a core each, which are more than a small machine has.
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    algorithm: IMPALA | None = None
    updates: setting.Updates = []
    try:
        setting.heed_signals()  # Ray has set its own.
        register_env("atari", make_environment)
        algorithm = make_config(**settings).build_algo()
        while not setting.complete(updates, options.seconds):
            algorithm.train()
            results = algorithm.learner_group.foreach_learner(
                lambda learner: (
                    learner.updates,
                    sum(weight.numel() for weight in learner.module["default_policy"].parameters()),
                )
            )
            updates, parameters = next(iter(results)).get()
        dropped = algorithm.learner_group.get_stats()["learner_group_ts_dropped_lifetime"]
    finally:
        if algorithm:
            algorithm.stop()
        ray.shutdown()
    setting.report(updates, options, parameters, settings, dropped_agent_steps=int(dropped))


if __name__ == "__main__":
    main()

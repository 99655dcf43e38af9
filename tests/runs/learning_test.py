"""Short runs on the real training path learn what each part of the agent is for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.learning import pixel_control
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.run import Run
from scalable_agent_popart.training import trainer
from tests.fakes.programs import metrics


def _train(logdir: Path, level_name: str, frames: int, **flags: Any) -> Config:
    given = {"level_name": level_name, "total_environment_frames": frames, "logdir": str(logdir)}
    # From 0 the first updates of such short runs are larger.
    config = Config.from_flags({**given, "initial_mean_square": 0.0, **flags})
    trainer.train(config)
    return config


@pytest.mark.parametrize(("level_name", "use_popart"), [("catch_1", False), ("catch_0.01", True)])
def test_impala_and_popart_impala_learn_catch(
    tmp_path: Path, level_name: str, use_popart: bool
) -> None:
    _train(tmp_path, level_name, 75_000, use_popart=use_popart)
    # Random play is 0, and 100 games have a standard error of about 8 around it. Threads race, but
    # runs have caught some nine of ten balls from 45,000 frames on.
    assert metrics(tmp_path)[-1]["mean"] > 80


def test_an_lstm_remembers_what_was_seen(tmp_path: Path) -> None:
    config = _train(
        tmp_path, "tests.fakes.recall:recall", 25_000, use_lstm=True, learning_rate=3e-3
    )
    # Chance is 0.5. Without an LSTM the mean return was 0.53 after 115,000 frames.
    returns = metrics(tmp_path)[-1]["episode_return"]
    assert returns[config.suite.tasks[0]] > 0.9


def test_pixel_control_learns_which_action_changes_which_pixels(tmp_path: Path) -> None:
    how = {"pixel_control": True, "pixel_control_cost": 0.1, "learning_rate": 3e-3}
    config = _train(tmp_path, "tests.fakes.switch:switch", 25_000, **how)
    saved = factory.make_saved_parts(config)
    Run.open(tmp_path).restore(learner=saved)
    step = tf.nest.map_structure(
        lambda leaf: tf.zeros((1, 1, *leaf.shape[1:]), leaf.dtype),
        factory.make_rollout_spec(config).env_outputs,
    )
    features = saved.agent.unroll(tf.zeros([1, 1], tf.int32), step, ()).features
    dueling = saved.q_head(features)
    stays, switches = (
        pixel_control.action_values(dueling, tf.fill([1, 1], action))[0, 0].numpy()
        for action in (0, 1)
    )
    # The cells at the left, and those at the right.
    advantage = np.split(switches - stays, 2, axis=1)
    assert advantage[0].mean() > 0.5
    assert abs(advantage[1]).mean() < 0.25

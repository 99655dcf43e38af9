"""A run whose learner computes on another device than its actors, without a GPU.

The processor is split into two logical devices. The second stands for the GPU and has the learner's
variables and updates; the first has the actors' policies.
"""

import json
import subprocess
import sys
from pathlib import Path

from tests.fakes.programs import DEADLINE_SECONDS, ROOT, metrics

_PROGRAM = """
import sys

import tensorflow as tf

(processor,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(
    processor, [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
)

from scalable_agent_popart import factory
from scalable_agent_popart.acting.policy import Policy
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.system import hardware
from tests.fakes.main_program import run

FIRST, SECOND = "/device:CPU:0", "/device:CPU:1"
make_learner, update, act = factory.make_learner, Learner.update, Policy.__init__


def on_second(function):
    def call(*arguments):
        with tf.device(SECOND):
            return function(*arguments)
    return call


def checked_update(learner, batch):
    tensors = [*tf.nest.flatten(batch), *learner.variables]
    assert all(tensor.device.endswith(SECOND) for tensor in tensors)
    return update(learner, batch)


def checked_policy(policy, agent, *arguments):
    assert all(v.device.endswith(FIRST) for v in agent.trainable_variables)
    act(policy, agent, *arguments)


hardware.learner_device = lambda: SECOND
factory.make_learner = on_second(make_learner)
Learner.update = on_second(checked_update)
Policy.__init__ = checked_policy
given = {"level_name": "catch5", "logdir": sys.argv[1], "num_actors": 10, "batch_size": 4}
given |= {"unroll_length": 10, "use_popart": True, "use_lstm": True, "log_task_gradients": True}
for frames in (400, 800):
    run(**given, total_environment_frames=frames)
run(mode="test", logdir=sys.argv[1], test_num_episodes=1)
"""


def test_a_learner_on_another_device_trains_resumes_and_is_tested(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert metrics(tmp_path)[-1]["frames"] == 800
    assert json.loads((tmp_path / "evaluation.json").read_text())["frames"] == 800

"""Training on a GPU as far as it can be tested without one.

The processor is split into two logical devices. The second stands for the GPU and has the learner's
variables and updates; the first has the actors' policies. What TensorFlow can compute on a real GPU
is known from the kernels that its package registers.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels

import experiment
from scalable_agent_popart import factory, rollouts
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.system import hardware
from scalable_agent_popart.training import trainer
from tests.fakes.programs import metrics, run_python

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
    ended = run_python("-c", _PROGRAM, str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert metrics(tmp_path)[-1]["frames"] == 800
    assert json.loads((tmp_path / "evaluation.json").read_text())["frames"] == 800


def has_gpu_kernel(node: Any) -> bool:
    """Returns whether TensorFlow computes a graph's node of these types on a GPU."""
    for kernel in kernels.get_registered_kernels_for_op(node.op).kernel:
        types = {c.name: c.allowed_values.list.type for c in kernel.constraint}
        given = {name: node.attr[name] for name in types}
        fits = all({a.type, *a.list.type} & set(types[name]) for name, a in given.items())
        if kernel.device_type in ("GPU", "DEFAULT") and fits:
            return True
    return False


@pytest.mark.skipif(
    not any(k.device_type == "GPU" for k in kernels.get_registered_kernels_for_op("MatMul").kernel),
    reason="this TensorFlow is built without kernels for GPUs",
)
@pytest.mark.parametrize("level_name", ["pong,boxing", "dmlab30"])
def test_a_gpu_computes_all_of_the_update_and_of_the_policy(level_name: str) -> None:
    """Any other operation would copy its inputs to the processor and its outputs back."""
    flags = {"level_name": level_name, "use_popart": True, "pixel_control": True}
    config = Config.from_flags({**flags, "use_lstm": True, "batch_size": 2, "unroll_length": 3})
    spec = factory.make_rollout_spec(config)
    learner = factory.make_learner(config, spec)
    step = [tf.TensorSpec(leaf.shape[1:], leaf.dtype) for leaf in tf.nest.flatten(spec.env_outputs)]
    inputs = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec((5, *leaf.shape), leaf.dtype),
        (tf.TensorSpec((), tf.int32), tf.nest.pack_sequence_as(spec.env_outputs, step)),
    )
    state = tf.nest.map_structure(tf.TensorSpec.from_tensor, learner.agent.initial_state(5))
    functions = {
        "update": tf.function(learner.update, [rollouts.batch_spec(spec, 2)]),
        "policy": tf.function(learner.agent.step, [*inputs, state, tf.TensorSpec((2,), tf.int32)]),
    }
    for name, function in functions.items():
        graph = function.get_concrete_function().graph.as_graph_def()
        nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
        assert {node.op for node in nodes if not has_gpu_kernel(node)} == set(), name


@pytest.mark.parametrize(
    ("gpu", "given", "defaults", "num_actors"),
    [
        (True, {}, {}, 256),
        (False, {}, {}, 32),
        (True, {"num_actors": 40}, {}, 40),
        (True, {}, {"num_actors": 8}, 8),
        (True, {"actor_jobs": 2}, {}, 32),
    ],
)
def test_a_gpu_has_more_actors_unless_others_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, given: dict, defaults: dict, num_actors: int
) -> None:
    monkeypatch.setattr(hardware, "has_gpu", lambda: gpu)
    monkeypatch.setattr(experiment, "_load_tensorflow", mock.Mock())
    monkeypatch.setattr(trainer, "train", train := mock.Mock())
    config = Config.from_flags({"level_name": "pong", **given, **defaults})
    suite = dataclasses.replace(config.suite, defaults={**config.suite.defaults, **defaults})
    config = dataclasses.replace(config, suite=suite)
    monkeypatch.setattr(experiment, "_config_to_train", lambda given: config)
    experiment._train(given)
    assert train.call_args.args[0].num_actors == num_actors

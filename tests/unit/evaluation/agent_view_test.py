"""Maps, policies and values, against slow oracles for each environment by itself."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from environments import ArraySpec, Ready, StepOutput, image_of
from popart import ValueHead
from scalable_agent_popart.acting.policy import Policy, WeightStore
from scalable_agent_popart.agent.agent import Agent
from scalable_agent_popart.agent.networks import ShallowTorso
from scalable_agent_popart.evaluation.agent_view import AgentView
from scalable_agent_popart.evaluation.drawing import Play
from scalable_agent_popart.learning.pixel_control import QHead, action_values
from scalable_agent_popart.suites import catch
from tests.fakes import oracles
from tests.fakes.agent_inputs import (
    NUM_ACTIONS,
    assert_close,
    make_inputs,
    part,
    with_done,
    with_game_over,
)

_HEIGHT, _WIDTH = 40, 36
_ROWS, _COLUMNS, _LEFT = 10, 8, 2  # Two columns of pixels are left out at either side.
_STEPS, _NUM = 5, 4
# These environments step together: any, and all, and one again at once.
_TURNS = ([0, 1, 2, 3], [2], [2], [0, 3], [1, 2, 3], [0, 1], [3], [0, 1, 2, 3], [0])
_LOST = (2, 3)  # Step and environment that was lost before this step, and has begun anew.
_SUITE = replace(catch.SUITE, test_versions={"catch_1": "held_out"})
_LEARNED = ["catch_10", "catch_1"]
# What each environment plays, and the id of the task that was learned.
_LEVELS = {"catch_10": 0, "held_out": 1, "catch_100": None, "catch_1": 1}


def _of(outputs: StepOutput, env: int, steps: slice) -> StepOutput:
    """Returns some steps of one environment, `[steps, 1, ...]`."""
    return tf.nest.map_structure(lambda a: tf.constant(a[steps, env : env + 1]), outputs)


def _overwrite(buffer: Any, rows: Any) -> Any:
    """Writes rows to the beginning of a buffer, as environments do; returns the part written."""

    def fill(array: np.ndarray, new: np.ndarray) -> np.ndarray:
        array[: len(new)] = new
        return array[: len(new)]

    return tf.nest.map_structure(fill, buffer, rows)


@pytest.mark.parametrize("num_heads", [1, 2])
def test_what_is_shown_is_that_of_each_environment_by_itself(num_heads: int) -> None:
    tf.random.set_seed(0)
    frame = ArraySpec((_HEIGHT, _WIDTH, 1), np.uint8)
    # What each environment returns, `[_STEPS, _NUM, ...]`; lives and games end.
    _, outputs = make_inputs(_STEPS, _NUM, frame.shape, seed=1)
    outputs = with_game_over(with_done(outputs, (2, 0)), (3, 0), (1, 2))
    outputs = tf.nest.map_structure(lambda tensor: tensor.numpy(), outputs)
    agent = Agent(NUM_ACTIONS, ShallowTorso(tf.float32), True, frame)
    one_step = _of(outputs, 0, slice(1))
    agent.unroll(tf.zeros([1, 1], tf.int32), one_step, agent.initial_state(1))
    head = QHead(NUM_ACTIONS, _HEIGHT, _WIDTH)
    policy = Policy(agent, WeightStore(agent.trainable_variables, 0), 0, _NUM)
    value_head = ValueHead(num_heads)
    value_head.shift.assign(range(3, 3 + num_heads))
    view = AgentView(policy, agent, head, value_head, _SUITE.select(_LEARNED))
    buffer = tf.nest.map_structure(np.copy, part(outputs, 0))
    times = np.zeros(_NUM, int)
    # Each environment's last actions, maps and policies.
    shown: list[list[tuple[int, dict[str, np.ndarray], Play]]] = [[] for _ in range(_NUM)]
    for turn in _TURNS:
        ids = np.array(turn)
        env_output = _overwrite(buffer, part(outputs, (times[ids], ids)))
        fresh = (times[ids] == _LOST[0]) & (ids == _LOST[1])
        policy.forget(ids[fresh])
        last = policy.last_output(ids).action
        levels = [list(_LEVELS)[i] for i in turn]
        maps, plays = view.look(Ready(ids, env_output, fresh), levels)
        for row, i in enumerate(turn):
            of_row = {label: values[row] for label, values in maps.items()}
            shown[i].append((int(last[row]), of_row, plays[row]))
        policy.act(ids, env_output)
        times[ids] += 1
    assert times.tolist() == [5, 4, 5, 5]
    images, ends = image_of(outputs.observation), outputs.info.episode_end
    changes = oracles.cell_rewards(images, ends, top=0, left=_LEFT)  # `[_STEPS - 1, _NUM, ...]`
    for i, task_id in enumerate(_LEVELS.values()):
        begins = [0, _LOST[0]] if i == _LOST[1] else [0]
        for begin, end in zip(begins, [*begins[1:], int(times[i])], strict=True):
            actions, seen, plays = zip(*shown[i][begin:end], strict=True)
            last_actions, steps = tf.constant(actions)[:, tf.newaxis], slice(begin, end)
            unroll = agent.unroll(last_actions, _of(outputs, i, steps), agent.initial_state(1))
            probabilities, play_values = zip(*plays, strict=True)
            assert_close(probabilities, tf.nn.softmax(unroll.policy_logits)[:, 0])
            assert (task_id is None) == np.isnan(play_values).all()
            if task_id is not None:
                heads = tf.fill([end - begin, 1], min(task_id, num_heads - 1))
                values_of_heads = value_head(unroll.features, heads).unnormalised
                assert_close(play_values, values_of_heads[:, 0])
            values = head(unroll.features)
            tasks = [tf.fill([end - begin, 1], action) for action in range(NUM_ACTIONS)]
            expected = np.max([action_values(values, action) for action in tasks], axis=0)[:, 0]
            for t, maps in enumerate(seen, start=begin):
                assert list(maps) == ["change", "max Q"]
                assert_close(maps["max Q"], expected[t - begin])
                change = np.zeros((_ROWS, _COLUMNS)) if t == begin else changes[t - 1, i]
                assert ends[t, i] or t == begin or change.min() > 0.1  # Also at a lost life.
                assert_close(maps["change"], change)

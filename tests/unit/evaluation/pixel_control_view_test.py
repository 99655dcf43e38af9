"""Maps of pixel control, against slow oracles for each environment by itself."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from environments import ArraySpec, Observation, StepOutput, image_of
from scalable_agent_popart.acting.policy import Policy
from scalable_agent_popart.acting.weights import WeightStore
from scalable_agent_popart.agent.agent import Agent
from scalable_agent_popart.evaluation.pixel_control_view import PixelControlView
from scalable_agent_popart.learning.pixel_control import QHead, action_values
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
# Which environments step together: any, and all, and one again at once.
_TURNS = ([0, 1, 2, 3], [2], [2], [0, 3], [1, 2, 3], [0, 1], [3], [0, 1, 2, 3], [0])


def play_outputs(channels: int, instructions: bool = False) -> StepOutput:
    """What each environment returns, `[_STEPS, _NUM, ...]`: a life is lost, and games end."""
    _, outputs = make_inputs(_STEPS, _NUM, (_HEIGHT, _WIDTH, channels), seed=1)
    outputs = with_game_over(with_done(outputs, (2, 0)), (3, 0), (1, 2), (2, 3))
    if instructions:
        words = np.random.default_rng(2).integers(1, 9, (_STEPS, _NUM, 64), np.int32)
        outputs = outputs._replace(observation=Observation(outputs.observation, tf.constant(words)))
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), outputs)


def make_agent(use_lstm: bool, stacks: bool, instructions: bool, outputs: StepOutput) -> Agent:
    frame = ArraySpec((_HEIGHT, _WIDTH, 1), np.uint8) if stacks else None
    agent = Agent(NUM_ACTIONS, "shallow", use_lstm, frame, instructions)
    agent.unroll(tf.zeros([1, 1], tf.int32), as_tensors(outputs, 0), agent.initial_state(1))
    return agent


def as_tensors(outputs: StepOutput, env: int, steps: int = 1) -> StepOutput:
    """The first steps of one environment, `[steps, 1, ...]`."""
    return tf.nest.map_structure(lambda a: tf.constant(a[:steps, env : env + 1]), outputs)


def cell_change(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """How much each cell changes from one image to the next, `[_ROWS, _COLUMNS]`."""
    result = np.zeros((_ROWS, _COLUMNS))
    for row in range(_ROWS):
        for column in range(_COLUMNS):
            left = _LEFT + 4 * column
            cell = (slice(4 * row, 4 * row + 4), slice(left, left + 4))
            result[row, column] = np.abs(after[cell].astype(float) - before[cell]).mean() / 255
    return result


def overwrite(buffer: Any, rows: Any) -> Any:
    """The first rows of a buffer, which hold these."""

    def fill(own: np.ndarray, new: np.ndarray) -> np.ndarray:
        own[: len(new)] = new
        return own[: len(new)]

    return tf.nest.map_structure(fill, buffer, rows)


@pytest.mark.parametrize("kind", ["colour", "stacked", "instructions"])
@pytest.mark.parametrize("use_lstm", [False, True])
def test_maps_are_those_of_each_environment_by_itself(use_lstm: bool, kind: str) -> None:
    tf.random.set_seed(0)
    outputs = play_outputs(1 if kind == "stacked" else 3, kind == "instructions")
    agent = make_agent(use_lstm, kind == "stacked", kind == "instructions", outputs)
    head = QHead(NUM_ACTIONS, _HEIGHT, _WIDTH)
    view = PixelControlView(agent, head)
    acting = make_agent(use_lstm, kind == "stacked", kind == "instructions", outputs)
    policy = Policy(acting, WeightStore(agent.trainable_variables, 0), 0, _NUM)
    policy.refresh()
    buffer = part(outputs, 0)  # Which environments overwrite in place.
    buffer = tf.nest.map_structure(np.copy, buffer)
    times = np.zeros(_NUM, int)
    maps: list[list[dict[str, np.ndarray]]] = [[] for _ in range(_NUM)]
    actions: list[list[int]] = [[] for _ in range(_NUM)]
    for turn in _TURNS:
        ids = np.array(turn)
        env_output = overwrite(buffer, part(outputs, (times[ids], ids)))
        last = policy.last_output(ids).action
        seen = view.maps(ids, env_output, last, policy.state(ids))
        for row, i in enumerate(turn):
            maps[i].append({label: values[row] for label, values in seen.items()})
            actions[i].append(int(last[row]))
        policy.act(ids, env_output)
        times[ids] += 1
    assert times.tolist() == [5, 4, 5, 5]
    for i in range(_NUM):
        images = image_of(outputs.observation)[:, i]
        steps = int(times[i])
        features = agent.unroll(
            tf.constant(actions[i])[:, tf.newaxis],
            as_tensors(outputs, i, steps),
            agent.initial_state(1),
        ).features
        values = head(features)
        each = [action_values(values, tf.fill([steps, 1], a)) for a in range(NUM_ACTIONS)]
        for t, own in enumerate(maps[i]):
            assert list(own) == ["change", "max Q"]
            assert_close(own["max Q"], np.max(each, axis=0)[t, 0])
            first = t == 0 or outputs.info.episode_end[t, i]
            expected = 0 * images[0, :1, :1, 0] if first else cell_change(images[t - 1], images[t])
            assert_close(own["change"], np.broadcast_to(expected, (_ROWS, _COLUMNS)))
            assert first or own["change"].min() > 0.1  # So in a lost life too.


def test_an_environment_that_is_forgotten_begins_anew() -> None:
    tf.random.set_seed(0)
    outputs = play_outputs(channels=3)
    agent = make_agent(False, False, False, outputs)
    view = PixelControlView(agent, QHead(NUM_ACTIONS, _HEIGHT, _WIDTH))
    ids, actions = np.array([1, 7]), np.zeros(2, np.int32)
    moved = []
    for t in range(4):
        if t == 2:
            view.forget(np.array([7, 9]))
        env_output = part(outputs, (t, slice(0, 2)))
        calm = env_output.info._replace(episode_end=np.zeros(2, bool))
        change = view.maps(ids, env_output._replace(info=calm), actions, ())["change"]
        moved.append(change.any(axis=(1, 2)).tolist())
    assert moved == [[False, False], [True, True], [True, False], [True, True]]

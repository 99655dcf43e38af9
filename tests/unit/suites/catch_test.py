"""Catch-5: the board, its rewards and its five sets of controls, seen from outside."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from environments import BatchedEnvironment, StepOutput
from scalable_agent_popart import scores, suites

_SUITE = suites.resolve("catch5")
_TASKS = range(len(_SUITE.tasks))
_SCALES = (0.01, 0.1, 1.0, 10.0, 100.0)
_STEPS = 9  # An episode's.
_OPTIONS = suites.EnvironmentOptions(1, height=10, width=5, action_set="moves")


def _make(task_ids: list[int], seeds: list[int]) -> BatchedEnvironment:
    (environment,) = _SUITE.make_environments(task_ids, seeds, _OPTIONS).members
    return environment


def _step(environment: BatchedEnvironment, actions: list[int] | np.ndarray) -> StepOutput:
    environment.send(np.asarray(actions, np.int32))
    return environment.receive()


def _columns(board: np.ndarray) -> tuple[int, int]:
    """Columns of the ball and of the paddle, read from the picture alone."""
    pieces = np.asarray(board.any(axis=-1))
    (ball,) = np.nonzero(pieces[:-1].any(axis=0))[0]
    (paddle,) = np.nonzero(pieces[-1])[0]
    return int(ball), int(paddle)


def _controls(task_id: int) -> tuple[int, ...]:
    """The paddle's move for each action, found by pressing each once."""
    environment = _make([task_id] * 3, [0, 1, 2])
    before = environment.reset().observation
    after = _step(environment, [0, 1, 2]).observation
    return tuple(_columns(b)[1] - _columns(a)[1] for a, b in zip(before, after, strict=True))


def _follow_the_ball(controls: tuple[int, ...], board: np.ndarray) -> int:
    ball, paddle = _columns(board)
    return controls.index(int(ball > paddle) - int(ball < paddle))


def _returns(
    environment: BatchedEnvironment,
    choose: Callable[[np.ndarray], np.ndarray],
    num_episodes: int,
) -> np.ndarray:
    """Returns `[num_episodes, N]` of the first episodes, from the totals in `info`."""
    output = environment.reset()
    returns = []
    for _ in range(num_episodes * _STEPS):
        output = _step(environment, choose(output.observation))
        if output.info.episode_end.all():
            returns.append(output.info.episode_return)
    return np.stack(returns)


def _perfect_return(task_played: int, controls_of: int) -> np.ndarray:
    """Returns in one task of the policy that is perfect in another."""
    controls = _controls(controls_of)
    environment = _make([task_played] * 8, list(range(8)))
    return _returns(
        environment,
        lambda boards: np.array([_follow_the_ball(controls, board) for board in boards]),
        num_episodes=10,
    )


def _normalised(task_id: int, mean_return: float) -> float:
    return scores.normalise(mean_return, _SUITE.reference_scores[_SUITE.tasks[task_id]])


def test_tasks_are_named_for_their_scales() -> None:
    assert _SUITE.tasks == ("catch_0.01", "catch_0.1", "catch_1", "catch_10", "catch_100")
    assert _SUITE.action_sets == {"moves": 3}


def test_board_is_ten_rows_of_five_columns_in_colour_and_as_the_spec_says() -> None:
    output = _make([0, 1, 4], [1, 2, 3]).reset()
    assert output.observation.shape == (3, 10, 5, 3)
    assert output.observation.dtype == np.uint8
    spec = _SUITE.observation_spec(_OPTIONS)
    assert spec.shape == (10, 5, 3)
    assert spec.dtype == np.uint8


def test_board_shows_one_ball_above_one_paddle_and_nothing_else() -> None:
    environment = _make([2] * 4, [1, 2, 3, 4])
    random = np.random.default_rng(0)
    output = environment.reset()
    for step in range(3 * _STEPS):
        pieces = output.observation.any(axis=-1)
        assert (pieces[:, :-1].sum(axis=(1, 2)) == 1).all()
        assert (pieces[:, -1].sum(axis=1) == 1).all()
        assert (np.argmax(pieces.any(axis=2), axis=1) == step % _STEPS).all()
        output = _step(environment, random.integers(0, 3, 4))


def test_ball_falls_straight_and_the_paddle_stays_on_the_board() -> None:
    environment = _make([0] * 3, [5, 6, 7])
    output = environment.reset()
    balls = [_columns(board)[0] for board in output.observation]
    for _ in range(_STEPS - 1):
        # Left, stay and right are actions 0, 1 and 2 of the first task.
        output = _step(environment, [0, 1, 2])
        assert [_columns(board)[0] for board in output.observation] == balls
    assert [_columns(board)[1] for board in output.observation] == [0, 2, 4]


def test_same_seed_plays_the_same_game_and_another_seed_another() -> None:
    random = np.random.default_rng(0)
    once, again = (_make([0, 3, 3], [11, 12, 13]) for _ in range(2))
    outputs = [(once.reset(), again.reset())]
    for _ in range(10 * _STEPS):
        actions = np.repeat(random.integers(0, 3), 3)
        outputs.append((_step(once, actions), _step(again, actions)))
    for a, b in outputs:
        np.testing.assert_array_equal(a.observation, b.observation)
        np.testing.assert_array_equal(a.reward, b.reward)
    assert any((a.observation[1] != a.observation[2]).any() for a, _ in outputs)


def test_ball_starts_in_every_column_equally_often() -> None:
    environment = _make([2] * 100, list(range(100)))
    output = environment.reset()
    counts = np.zeros(5)
    for _ in range(10):
        counts += np.bincount([_columns(board)[0] for board in output.observation], minlength=5)
        for _ in range(_STEPS):
            output = _step(environment, np.zeros(100))
    # 4 standard deviations of a binomial count.
    assert (np.abs(counts - 200) < 4 * np.sqrt(1000 * 0.2 * 0.8)).all()


def test_colours_are_distinct_and_worn_by_both_pieces() -> None:
    boards = _make(list(_TASKS), [0] * 5).reset().observation
    colours = []
    for board in boards:
        worn = np.unique(board[board.any(axis=-1)], axis=0)
        assert len(worn) == 1
        colours.append(tuple(worn[0].tolist()))
    assert len(set(colours)) == len(_TASKS)


def test_controls_of_every_task_are_a_permutation_of_their_own() -> None:
    controls = [_controls(task_id) for task_id in _TASKS]
    assert all(sorted(moves) == [-1, 0, 1] for moves in controls)
    assert len(set(controls)) == len(_TASKS)


@pytest.mark.parametrize("task_id", _TASKS)
def test_reward_is_the_signed_scale_at_the_last_step_and_zero_before(task_id: int) -> None:
    environment = _make([task_id] * 10, list(range(10)))
    stay = _controls(task_id).index(0)
    output = environment.reset()
    for episode in range(2):
        caught = np.array([ball == paddle for ball, paddle in map(_columns, output.observation)])
        assert 0 < caught.sum() < 10, "both outcomes must occur"
        for step in range(_STEPS):
            output = _step(environment, [stay] * 10)
            last = step == _STEPS - 1
            scale = np.float32(_SCALES[task_id])
            expected = np.where(caught, scale, -scale) if last else np.zeros(10)
            np.testing.assert_array_equal(output.reward, expected, err_msg=f"episode {episode}")
            np.testing.assert_array_equal(output.done, [last] * 10)
    assert output.reward.dtype == np.float32


def test_done_comes_with_the_next_episodes_first_board_and_the_finished_ones_totals() -> None:
    environment = _make([3] * 4, [1, 2, 3, 4])
    environment.reset()
    for _ in range(_STEPS):
        output = _step(environment, [0, 1, 2, 0])
    assert output.done.all()
    pieces = output.observation.any(axis=-1)
    assert pieces[:, 0].any(axis=1).all(), "the ball is back in the top row"
    assert pieces[:, -1, 2].all(), "the paddle is back in the middle"
    np.testing.assert_array_equal(output.info.episode_end, output.done)
    np.testing.assert_array_equal(output.info.episode_return, output.reward)
    np.testing.assert_array_equal(output.info.episode_step, [_STEPS] * 4)
    after = _step(environment, [0, 1, 2, 0])
    np.testing.assert_array_equal(after.info.episode_step, [1] * 4)
    np.testing.assert_array_equal(after.info.episode_return, [0.0] * 4)
    assert (np.argmax(after.observation.any(axis=(2, 3)), axis=1) == 1).all()


@pytest.mark.parametrize("task_id", _TASKS)
def test_following_the_ball_scores_exactly_100_percent(task_id: int) -> None:
    returns = _perfect_return(task_id, controls_of=task_id)
    np.testing.assert_array_equal(returns, np.full_like(returns, _SCALES[task_id]))
    assert _normalised(task_id, _SCALES[task_id]) == 100.0


def test_random_play_scores_about_zero_percent_in_every_task() -> None:
    copies, episodes = 60, 20
    ids = np.repeat(_TASKS, copies)
    environment = _make(ids.tolist(), list(range(len(ids))))
    random = np.random.default_rng(0)
    returns = _returns(environment, lambda boards: random.integers(0, 3, len(boards)), episodes)
    for task_id in _TASKS:
        played = returns[:, ids == task_id].astype(np.float64)
        percents = np.array([_normalised(task_id, value) for value in played.ravel()])
        error = percents.std() / np.sqrt(percents.size)
        assert 0 < error < 3
        assert abs(percents.mean()) < 4 * error


@pytest.mark.parametrize(("mastered", "played"), itertools.permutations(_TASKS, 2))
def test_what_is_perfect_in_one_task_does_not_score_in_another(mastered: int, played: int) -> None:
    controls, environment = _controls(mastered), _make([played] * 100, list(range(100)))
    first = environment.reset().observation
    # What becomes of a ball depends on its column alone: one board a column gives the mean.
    balls = [_columns(board)[0] for board in first]
    boards = [balls.index(column) for column in range(5)]
    observation = first
    for _ in range(_STEPS):
        output = _step(environment, [_follow_the_ball(controls, b) for b in observation])
        observation = output.observation
    mean_return = float(output.reward[boards].astype(np.float64).mean())
    assert _normalised(played, mean_return) < 1e-4

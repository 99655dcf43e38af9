"""Catch-5: the board, its rewards and its five sets of controls, seen from outside."""

from collections.abc import Callable

import numpy as np
import pytest

from environments import BatchedEnvironment
from scalable_agent_popart import scores, suites
from tests.fakes.play import play

_SUITE = suites.resolve("catch5")
_TASKS = range(len(_SUITE.tasks))
_SCALES = (0.01, 0.1, 1.0, 10.0, 100.0)
_STEPS = 9  # Steps of an episode.
_OPTIONS = suites.EnvironmentOptions(1, height=10, width=5, action_set="moves")


def _make(task_ids: list[int], seeds: list[int]) -> BatchedEnvironment:
    (environment,) = _SUITE.make_environments(task_ids, seeds, _OPTIONS).members
    return environment


def _columns(boards: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the columns of balls and paddles `[N]`, read from the pictures alone."""
    pieces = boards.any(axis=-1)
    return pieces[:, :-1].any(axis=1).argmax(axis=1), pieces[:, -1].argmax(axis=1)


def _controls(task_id: int) -> list[int]:
    """Returns the paddle's move for each action, found by pressing each once."""
    before, after = play(_make([task_id] * 3, [0, 1, 2]), [[0, 1, 2]]).observation
    return (_columns(after)[1] - _columns(before)[1]).tolist()


def _follow_the_ball(controls: list[int]) -> Callable[[np.ndarray], np.ndarray]:
    action_of_move = np.argsort(controls)  # Moves are -1, 0 and 1.

    def choose(boards: np.ndarray) -> np.ndarray:
        balls, paddles = _columns(boards)
        return action_of_move[1 + np.sign(balls - paddles)]

    return choose


def _scores(
    task_id: int, num_boards: int, num_episodes: int, choose: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Returns a policy's normalised scores `[num_episodes, num_boards]`, from the totals."""
    environment = _make([task_id] * num_boards, list(range(num_boards)))
    output, returns = environment.reset(), []
    for _ in range(num_episodes * _STEPS):
        environment.send(choose(output.observation))
        output = environment.receive()
        if output.info.episode_end.all():
            returns.append(output.info.episode_return.astype(np.float64))
    reference = _SUITE.reference_scores[_SUITE.tasks[task_id]]
    return scores.normalise(np.stack(returns), reference)


def test_tasks_have_names_and_colours_of_their_own() -> None:
    assert _SUITE.tasks == ("catch_0.01", "catch_0.1", "catch_1", "catch_10", "catch_100")
    boards = _make(list(_TASKS), [0] * 5).reset().observation
    colours = [np.unique(board[board.any(axis=-1)], axis=0) for board in boards]
    assert {len(colour) for colour in colours} == {1}, "both pieces wear it"
    assert len({colour.tobytes() for colour in colours}) == 5


@pytest.mark.parametrize("task_id", _TASKS)
def test_episode_ends_with_the_signed_scale_and_the_next_first_board(task_id: int) -> None:
    stay = _controls(task_id).index(0)
    outputs = play(_make([task_id] * 10, list(range(10))), np.full((2 * _STEPS, 10), stay))
    info, scale = outputs.info, np.float32(_SCALES[task_id])
    ends = np.arange(1, 2 * _STEPS + 1) % _STEPS == 0
    for first, last in ((0, _STEPS), (_STEPS, 2 * _STEPS)):
        caught = np.equal(*_columns(outputs.observation[first]))
        assert 0 < caught.sum() < 10, "both outcomes must occur"
        for array in (outputs.reward, info.episode_return):
            assert not array[first + 1 : last].any()
            np.testing.assert_array_equal(array[last], np.where(caught, scale, -scale))
        pieces = outputs.observation[last].any(axis=-1)
        assert pieces[:, 0].any(axis=1).all(), "the ball is back in the top row"
        assert pieces[:, -1, 2].all(), "the paddle is back in the middle"
    for array in (outputs.done, info.episode_end):
        assert (array[1:] == ends[:, None]).all()


def test_balls_are_uniform_and_random_play_scores_about_zero_percent() -> None:
    balls, _ = _columns(_make([0] * 1000, list(range(1000))).reset().observation)
    # 4 standard deviations of a binomial count.
    assert (np.abs(np.bincount(balls) - 200) < 4 * np.sqrt(1000 * 0.2 * 0.8)).all()
    random = np.random.default_rng(0)
    for task_id in _TASKS:
        scored = _scores(task_id, 60, 20, lambda seen: random.integers(0, 3, len(seen)))
        error = scored.std() / np.sqrt(scored.size)
        assert 0 < error < 3
        assert abs(scored.mean()) < 4 * error


@pytest.mark.parametrize("mastered", _TASKS)
def test_what_is_perfect_in_one_task_does_not_score_in_another(mastered: int) -> None:
    choose = _follow_the_ball(_controls(mastered))
    np.testing.assert_allclose(_scores(mastered, 8, 10, choose), 100.0, rtol=1e-6)
    # The outcome depends on the ball's column alone: one board a column gives the mean.
    balls, _ = _columns(_make([0] * 100, list(range(100))).reset().observation)
    boards = [balls.tolist().index(column) for column in range(5)]
    for played in set(_TASKS) - {mastered}:
        assert _scores(played, 100, 1, choose)[0, boards].mean() < 1e-4

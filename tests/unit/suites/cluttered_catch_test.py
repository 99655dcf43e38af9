"""Cluttered Catch: what is seen, what is won, and what random and perfect play win."""

import numpy as np
import pytest

from environments import StepOutput
from scalable_agent_popart import suites
from scalable_agent_popart.suites.cluttered_catch import ClutteredCatchEnvironments
from tests.fakes.play import play

SIZE = 12
LENGTH = SIZE - 1


def make(num_boards: int = 8) -> ClutteredCatchEnvironments:
    return ClutteredCatchEnvironments(np.zeros(num_boards, np.int32), range(num_boards))


def tiles_of(output: StepOutput) -> np.ndarray:
    """One pixel of each tile `[N, 12, 12, 3]`; all sixteen are alike."""
    images = output.observation.reshape(-1, SIZE, 4, SIZE, 4, 3)
    assert (images == images[:, :, :1, :, :1]).all()
    return images[:, :, 0, :, 0]


def pieces(output: StepOutput) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows and columns of the balls, and columns of the paddles: the white tiles, `[N]` each."""
    white = (tiles_of(output) == 255).all(axis=-1)
    assert (white.sum(axis=(1, 2)) == 2).all()
    assert (white[:, -1].sum(axis=1) == 1).all()
    rows = white[:, :-1].any(axis=2).argmax(axis=1)
    return rows, white[:, :-1].any(axis=1).argmax(axis=1), white[:, -1].argmax(axis=1)


def test_balls_fall_paddles_move_and_nothing_else_changes_until_the_episode_ends() -> None:
    boards, rng = make(), np.random.default_rng(0)
    before = boards.reset()
    assert pieces(before)[0].tolist() == [0] * 8
    for t in range(1, 5 * LENGTH + 1):
        actions = rng.integers(3, size=8)
        boards.send(actions)
        output = boards.receive()
        (row, ball, paddle), (new_row, new_ball, new_paddle) = pieces(before), pieces(output)
        moved = np.clip(paddle + actions - 1, 0, SIZE - 1)
        ends = t % LENGTH == 0
        assert output.done.tolist() == output.info.episode_end.tolist() == [ends] * 8
        assert output.reward.tolist() == (ends & (ball == moved)).tolist()
        assert (new_row == (0 if ends else row + 1)).all()
        if not ends:
            np.testing.assert_array_equal(new_ball, ball)
            np.testing.assert_array_equal(new_paddle, moved)
        changed = (tiles_of(output) != tiles_of(before)).any(axis=-1).sum(axis=(1, 2))
        assert (changed > 100).all() if ends else (changed <= 4).all()
        before = output


def test_reference_scores_are_those_of_random_and_of_perfect_play() -> None:
    reference = suites.resolve("cluttered_catch").reference_scores["cluttered_catch"]
    actions = np.random.default_rng(0).integers(3, size=(10 * LENGTH, 400))
    # Three standard errors.
    random = play(make(400), actions).reward.sum() / 4000
    assert random == pytest.approx(reference.random, abs=0.013)
    boards = make(100)
    output = boards.reset()
    for _ in range(LENGTH):
        _, ball, paddle = pieces(output)
        boards.send(1 + np.sign(ball - paddle))
        output = boards.receive()
    assert output.info.episode_return.tolist() == [reference.human] * 100

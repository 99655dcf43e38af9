"""Plays a trained agent live: in a window, or without a display as a page on this machine.

  python tools/watch.py --logdir=agents/catch5 --level_name=catch_100

Next to the picture stand the probabilities of actions, and above it the return so far and the value
that the agent gives to what it sees. Ctrl-C or closing the window ends it.
"""

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from absl import app, flags, logging
from matplotlib import animation
from matplotlib import pyplot as plt

import scalable_agent_popart
from environments import EnvironmentLostError
from scalable_agent_popart import errors, suites

if TYPE_CHECKING:
    from scalable_agent_popart.trained import TaskEnvironment, TrainedAgent

FLAGS = flags.FLAGS
flags.DEFINE_string("logdir", None, "Directory of the run.", required=True)
flags.DEFINE_string("level_name", None, "The task to play. Default: the first of the run.")
flags.DEFINE_integer("frames", None, "Frames of the checkpoint. Default: the newest.")
flags.DEFINE_integer("seed", 0, "Seed of the environment and of the sampled actions.")
flags.DEFINE_bool("greedy", False, "Whether to take the most probable action.")
flags.DEFINE_integer("port", 8988, "Port of the page on 127.0.0.1, without a display.")
flags.DEFINE_integer("steps", None, "Agent steps to play. Default: without end.", lower_bound=1)

_STEPS_PER_SECOND = 15  # Four frames at 60 Hz.


def play(
    agent: "TrainedAgent", environment: "TaskEnvironment", task: str
) -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
    """Yields each step's picture, the probabilities of actions and a line of text."""
    state = agent.begin(seed=FLAGS.seed)
    observation, _ = environment.reset()
    reward, ended, total, last = 0.0, False, 0.0, ""
    for _ in range(FLAGS.steps) if FLAGS.steps else itertools.count():
        policy = agent.policy(observation, reward, ended, state)
        value = agent.value(observation, task, reward, ended, state)
        text = f"{task}   return {total:g}   value {value:.3g}{last}"
        yield environment.render(), policy, text
        action = agent.act(observation, reward, ended, state, greedy=FLAGS.greedy)
        observation, reward, terminated, lost, info = environment.step(action)
        ended = terminated or lost
        total += reward
        if ended:
            total, last = 0.0, f"   last episode {info['episode_return']:g}"
            environment.reset()


def show(steps: Iterator[tuple[np.ndarray, np.ndarray, str]], num_actions: int) -> None:
    """Draws the steps at the speed of people's play, until the window or the page is closed."""
    figure, (screen, bars) = plt.subplots(1, 2, width_ratios=[2, 1], figsize=(8, 5))
    screen.set_axis_off()
    image = screen.imshow(np.zeros((1, 1, 3), np.uint8))
    rectangles = bars.bar(range(num_actions), np.zeros(num_actions))
    bars.set(xlabel="action", ylabel="probability", ylim=(0, 1))

    def draw(step: tuple[np.ndarray, np.ndarray, str]) -> None:
        picture, policy, text = step
        image.set(data=picture, extent=(0, picture.shape[1], picture.shape[0], 0))
        for rectangle, probability in zip(rectangles, policy, strict=True):
            rectangle.set_height(probability)
        figure.suptitle(text)

    playing = animation.FuncAnimation(
        figure, draw, steps, interval=1000 / _STEPS_PER_SECOND, repeat=False, save_count=1
    )
    plt.show()
    del playing  # It plays as long as something holds it.


def main(argv: list[str]) -> None:
    """Plays; a user's error is one line."""
    del argv
    logging.set_verbosity(logging.WARNING)  # The page's server names each request.
    matplotlib.rcParams["webagg.address"] = "127.0.0.1"
    matplotlib.rcParams["webagg.port"] = FLAGS.port
    matplotlib.rcParams["webagg.open_in_browser"] = False
    if "MPLBACKEND" not in os.environ and not _has_window():
        plt.switch_backend("webagg")
    try:
        agent = scalable_agent_popart.load(FLAGS.logdir, FLAGS.frames, FLAGS.level_name)
        named = suites.resolve(FLAGS.level_name).tasks if FLAGS.level_name else agent.tasks
        task, mode = named[0], "rgb_array"
        with contextlib.closing(agent.make_environment(task, FLAGS.seed, mode)) as environment:
            show(play(agent, environment, task), agent.num_actions)
    except (EnvironmentLostError, errors.UserError, ValueError) as error:
        sys.exit(f"error: {error}")


def _has_window() -> bool:
    """Returns whether Matplotlib can open windows here."""
    if not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))):
        return False
    plt.figure()
    plt.close()
    return matplotlib.get_backend().lower() in matplotlib.backends.backend_registry.list_builtin(
        matplotlib.backends.BackendFilter.INTERACTIVE
    )


if __name__ == "__main__":
    app.run(main)

"""Plays a trained agent live: in a window, or without a display as a page on this machine.

  python tools/watch.py --logdir=agents/catch5 --level_name=catch_100

Above the picture stands the return so far, and next to it the probabilities of actions and the
value that the agent gives to what it sees. Ctrl-C or closing the window ends it.
"""

if __name__ == "__main__":
    import start  # noqa: F401

import asyncio.log
import contextlib
import itertools
import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from absl import flags, logging
from matplotlib import animation
from matplotlib import pyplot as plt
from matplotlib.backends import backend_webagg_core
from PIL import Image

import scalable_agent_popart
from scalable_agent_popart import suites
from scalable_agent_popart.evaluation.drawing import Play, Screen
from scalable_agent_popart.system import program

if TYPE_CHECKING:
    from scalable_agent_popart.evaluation.trained import TaskEnvironment, TrainedAgent

FLAGS = flags.FLAGS

_STEPS_PER_SECOND = 15  # Four frames at 60 Hz.
_DOTS_PER_INCH = 100


def play(
    agent: "TrainedAgent",
    environment: "TaskEnvironment",
    suite: suites.Suite,
    seed: int = 0,
    greedy: bool = False,
) -> Iterator[Image.Image]:
    """Yields each step of a suite's first task as films of tests show it, with the policy."""
    task, state = suite.tasks[0], agent.begin(seed=seed)
    screen = Screen(suite.test_version(task), suite.names_of_actions(agent.config.action_set))
    observation, _ = environment.reset()
    reward, ended, total = 0.0, False, 0.0
    while True:
        seen = observation, reward, ended, state
        expected = Play(agent.policy(*seen), agent.value(observation, task, *seen[1:]))
        yield screen.draw(environment.render(), total, ended, play=expected)
        action = agent.act(*seen, greedy=greedy)
        observation, reward, terminated, lost, info = environment.step(action)
        total, ended = info["episode_return"], terminated or lost
        if ended:
            environment.reset()


def show(steps: Iterator[Image.Image], title: str) -> None:
    """Shows the steps at the speed of people's play, until the window or the page is closed."""
    first = next(steps)
    figure = plt.figure(title, np.divide(first.size, _DOTS_PER_INCH), _DOTS_PER_INCH)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    image = axes.imshow(first)
    playing = animation.FuncAnimation(
        figure, image.set_data, steps, interval=1000 / _STEPS_PER_SECOND, repeat=False, save_count=1
    )
    plt.show()
    del playing  # It plays as long as something holds it.


def main(argv: list[str]) -> None:
    """Plays."""
    logging.set_verbosity(logging.WARNING)  # The page's server names each request.
    asyncio.log.logger.setLevel("CRITICAL")  # It takes a closed page for an error.
    warnings.filterwarnings("ignore", "Animation was deleted")  # The page was never opened.
    matplotlib.rc("webagg", address="127.0.0.1", port=FLAGS.port, open_in_browser=False)
    if "MPLBACKEND" not in os.environ and matplotlib.get_backend().lower() == "agg":
        plt.switch_backend("webagg")  # There is no display.
        backend_webagg_core.NavigationToolbar2WebAgg.toolitems = []  # Zoom means nothing here.
    places = FLAGS.dataset_path, FLAGS.level_cache_dir
    trained = FLAGS.logdir, FLAGS.frames, FLAGS.level_name
    agent = scalable_agent_popart.load(*trained, *places, FLAGS.network)
    suite = suites.resolve(FLAGS.level_name) if FLAGS.level_name else agent.config.suite
    made = agent.make_environment(suite.tasks[0], FLAGS.seed, "rgb_array")
    with contextlib.closing(made) as environment:
        steps = play(agent, environment, suite, FLAGS.seed, FLAGS.greedy)
        show(itertools.islice(steps, FLAGS.steps), f"{suite.tasks[0]}, to be ended by Ctrl-C")


if __name__ == "__main__":
    integer = program.Integer()
    flags.DEFINE_string("logdir", None, "Directory of the run.", required=True)
    flags.DEFINE_string("level_name", None, "The task to play. Default: the first of the run.")
    flags.DEFINE_string("network", None, "The run's --network, if that is MODULE:NAME.")
    flags.DEFINE(integer, "frames", None, "Frames of the checkpoint. Default: the newest.")
    flags.DEFINE(integer, "seed", 0, "Seed of the environment and of the sampled actions.")
    flags.DEFINE_bool("greedy", False, "Whether to take the most probable action.")
    flags.DEFINE_string("dataset_path", None, "Images of two DmLab levels. Default: the run's.")
    flags.DEFINE_string("level_cache_dir", None, "For compiled DmLab levels. Default: the run's.")
    flags.DEFINE(integer, "port", 8988, "Port of the page on 127.0.0.1, without a display.")
    flags.DEFINE(program.Integer(1), "steps", None, "Agent steps to play. Default: without end.")
    program.run(main, FLAGS, ValueError)

"""Measures what random play scores, with this agent's own actions, action repeats and no-op starts.

  python tools/measure_random_play.py --level_name=atari57 --output=random.csv

Each action is sampled uniformly from all that the agent has. The published random agent acts less
often, and with the actions of each game, so that in some games its scores differ from these. Tasks
that the file already has are not played again, so that the same command resumes.
"""

if __name__ == "__main__":
    import start  # noqa: F401

import csv
from pathlib import Path

import numpy as np
from absl import flags

from environments import EnvironmentLostError
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.json_lines import open_to_append
from scalable_agent_popart.system import program, tensorflow_import

_FLAGS = flags.FLAGS
_COLUMNS = ("game", "episodes", "mean", "standard_error")
_MAX_ENVIRONMENTS = 6  # More at once would play many episodes that do not count.
_MAX_RESTARTS = 8  # An environment may be lost so often before it finishes an episode.


def define_flags() -> None:
    """Defines the tool's flags, which other programs of this process may have, too."""
    flags.DEFINE_string("level_name", "atari57", "Suite or tasks to play.")
    flags.DEFINE(program.Integer(2), "episodes", 30, "Episodes of each task.")
    flags.DEFINE(program.Integer(), "seed", 1, "Seed of environments and actions.")
    flags.DEFINE_string("output", None, "CSV file to write, or to complete.", required=True)


def play(config: Config, task: int, num_episodes: int) -> list[float]:
    """Returns the raw returns of a task's episodes under uniformly random actions.

    Each environment has its share of the episodes, because the first to end are the short ones.
    Raises EnvironmentLostError if an environment is lost too often within an episode.
    """
    tensorflow_import.import_quietly()
    from scalable_agent_popart import factory  # noqa: PLC0415

    parts = np.array_split(np.arange(num_episodes), min(num_episodes, _MAX_ENVIRONMENTS))
    remaining = np.array([len(part) for part in parts])
    seed = np.random.SeedSequence([config.seed, task])
    actions = np.random.default_rng(seed.spawn(1)[0])
    pool = factory.make_environments(
        config, config.suite, [task] * len(remaining), seed, training=False
    )
    returns: list[float] = []
    restarts = np.zeros_like(remaining)  # Up to the end of each environment's last episode.
    try:
        pool.start()
        while remaining.any():
            ids, output, _ = pool.receive(1.0)
            ended = output.info.episode_end & (remaining[ids] > 0)
            returns += output.info.episode_return[ended].tolist()
            remaining[ids[ended]] -= 1
            restarts[ids[ended]] = pool.restarts[ids[ended]]
            if np.any((pool.restarts - restarts)[remaining > 0] > _MAX_RESTARTS):
                name, often = config.suite.tasks[task], f"more than {_MAX_RESTARTS} times"
                raise EnvironmentLostError(f"{name} was lost {often} before it ended an episode")
            pool.send(ids, actions.integers(config.num_actions, size=len(ids), dtype=np.int32))
    finally:
        pool.close()
    return returns


def measure(config: Config, num_episodes: int, output: Path) -> None:
    """Plays the tasks that the file lacks, and adds the row of each as soon as it is measured."""
    text = output.read_text(encoding="utf-8") if output.exists() else ""
    if text and text.splitlines()[0] != ",".join(_COLUMNS):
        raise UserError(f"{output} is no file of this tool; give another --output")
    with open_to_append(output) as file:  # A full disk may have cut off the last line.
        known = text[: text.rfind("\n") + 1].splitlines()
        writer = csv.writer(file, lineterminator="\n")
        if not known:
            writer.writerow(_COLUMNS)
        for task, name in enumerate(config.suite.tasks):
            if any(line.startswith(f"{name},") for line in known):
                continue
            returns = np.array(play(config, task, num_episodes))
            error = returns.std(ddof=1) / np.sqrt(len(returns))
            row = (name, len(returns), f"{returns.mean():.6g}", f"{error:.4g}")
            writer.writerow(row)
            file.flush()
            print(*row, flush=True)


def main(_: list[str]) -> None:
    """Measures; after Ctrl-C the file has every task that was finished."""
    config = Config.from_flags({"level_name": _FLAGS.level_name, "seed": _FLAGS.seed})
    config.check_playable()
    measure(config, _FLAGS.episodes, Path(_FLAGS.output).expanduser())


if __name__ == "__main__":
    define_flags()
    program.run(main, _FLAGS, OSError)

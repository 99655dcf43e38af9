"""Measures what random play scores, with this agent's own actions, action repeats and no-op starts.

  python tools/measure_random_play.py --level_name=atari57 --output=random.csv

Each action is sampled uniformly from all that the agent has. The published random agent acts less
often, and with the actions of each game, so that in some games its scores differ from these. Tasks
that the file already has are not played again, so that the same command resumes.
"""

if __name__ == "__main__":
    import start  # noqa: F401

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from absl import flags

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.json_lines import open_to_append
from scalable_agent_popart.system import program, tensorflow_import

_FLAGS = flags.FLAGS
_HEADER = "game,episodes,mean,standard_error"
_MAX_ENVIRONMENTS = 6  # More at once would play many episodes that do not count.


def play(config: Config, task: int, num_episodes: int) -> np.ndarray:
    """Returns the raw returns of a task's episodes under uniformly random actions."""
    tensorflow_import.import_quietly()
    from scalable_agent_popart import factory  # noqa: PLC0415
    from scalable_agent_popart.evaluation import evaluate, videos  # noqa: PLC0415

    parts = np.array_split(np.arange(num_episodes), min(num_episodes, _MAX_ENVIRONMENTS))
    quotas = [len(part) for part in parts]
    seed = np.random.SeedSequence([config.seed, task])
    generator = np.random.default_rng(seed.spawn(1)[0])

    def act(ids: np.ndarray, _: Any) -> SimpleNamespace:
        actions = generator.integers(config.num_actions, size=len(ids), dtype=np.int32)
        return SimpleNamespace(action=actions)

    policy: Any = SimpleNamespace(act=act, forget=lambda ids: None)
    options = config.environment_options(training=False)
    made = factory.make_environments(options, config.suite, [task] * len(quotas), seed)
    with contextlib.closing(made) as environments:
        films = videos.VideoRecorder(Path(), {})  # There are none.
        returns = evaluate.play(environments, policy, quotas, films, config.suite.tasks)
    return np.concatenate(returns)


def measure(config: Config, num_episodes: int, output: Path) -> None:
    """Plays the tasks that the file lacks, and adds the row of each as soon as it is measured."""
    if output.exists() and output.read_text().partition("\n")[0] not in ("", _HEADER):
        raise UserError(f"{output} is no file of this tool; give another --output")
    with open_to_append(output) as file:  # A full disk may have cut off the last line.
        known = [line.partition(",")[0] for line in output.read_text().splitlines()]
        if not known:
            print(_HEADER, file=file)
        for task, name in enumerate(config.suite.tasks):
            if name not in known:
                returns = play(config, task, num_episodes)
                error = returns.std(ddof=1) / np.sqrt(len(returns))
                row = f"{name},{len(returns)},{returns.mean():.6g},{error:.4g}"
                print(row, file=file, flush=True)
                print(row, flush=True)


def main(_: list[str]) -> None:
    """Measures; after Ctrl-C the file has every task that was finished."""
    config = Config.from_flags({"level_name": _FLAGS.level_name, "seed": _FLAGS.seed})
    config.check_playable()
    measure(config, _FLAGS.episodes, Path(_FLAGS.output).expanduser())


if __name__ == "__main__":
    flags.DEFINE_string("level_name", "atari57", "Suite or tasks to play.")
    flags.DEFINE(program.Integer(2), "episodes", 30, "Episodes of each task.")
    flags.DEFINE(program.Integer(), "seed", 1, "Seed of environments and actions.")
    flags.DEFINE_string("output", None, "CSV file to write, or to complete.", required=True)
    program.run(main, _FLAGS, OSError)

"""Records how Sample Factory's own Atari example learns a game, by minutes.

  MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_ARENA_MAX=1 \\
    OMP_WAIT_POLICY=PASSIVE python sample_factory_learning.py --game=breakout --minutes=60 \\
    --csv=breakout.csv

The settings of learning are the example's, but for a learning rate that hardly falls, as training
has no planned end. Those of speed are what `compare.py` calls tuned, with the example's synchronous
sampling and eight environments on two workers. All further options go to Sample Factory. Each row
of the table is a minute, with the columns of `tools/compare_learning.py`: agent steps up to its
last game's end, the games that ended in it, and their mean raw return. A minute in which no game
ended has no row.
"""

import argparse
import csv
import multiprocessing
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import ale_py  # noqa: F401 - It registers the games, also in the workers.
import sample_factory_appo
import setting
from sample_factory.algo.utils.context import global_model_factory
from sample_factory.algo.utils.misc import EPISODIC, ExperimentStatus
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from sf_examples.atari.atari_params import atari_override_defaults
from sf_examples.atari.atari_utils import make_atari_env

_SETTINGS = {"device": "cpu", "num_workers": 2, "num_envs_per_worker": 4}
_SETTINGS |= {**sample_factory_appo.TUNED, "train_for_env_steps": 1_000_000_000}
_RETURN = "RecordEpisodeStatistics_reward"  # The raw return of a whole game.
_WHO = ["run", "game", "agent", "seed"]
_COLUMNS = [*_WHO, "agent_steps_millions", "games", "mean_return", "minutes"]


def main() -> int:
    """Trains for so many minutes, and writes the table."""
    setting.heed_signals()
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--game", required=True)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--csv", type=Path, required=True)
    options, rest = parser.parse_known_args()
    returns: dict[int, list[float]] = {}
    steps: dict[int, int] = {}
    began = setting.now()

    def on_episode(runner: Any, message: dict[str, Any], policy: int) -> None:
        minutes = (setting.now() - began) / 60
        minute = int(minutes) + 1
        steps[minute] = runner.env_steps.get(policy, 0) // setting.FRAME_SKIP
        if _RETURN in message[EPISODIC]:  # Otherwise only a life was lost.
            returns.setdefault(minute, []).append(float(message[EPISODIC][_RETURN]))
        if minutes >= options.minutes:
            runner.cfg.train_for_env_steps = 0  # Ends training at the next update.

    name = f"atari_{options.game.replace('_', '')}"  # The example has no underscores in games.
    register_env(name, make_atari_env)
    global_model_factory().register_actor_critic_factory(sample_factory_appo.make_actor_critic)
    with tempfile.TemporaryDirectory() as directory:
        settings = {"env": name, "seed": options.seed, "train_dir": directory, **_SETTINGS}
        config = sample_factory_appo.make_config(settings, rest, atari_override_defaults)
        _, runner = make_runner(config)
        runner.register_episodic_stats_handler(on_episode)
        status = runner.init()
        if status == ExperimentStatus.SUCCESS:
            began = setting.now()
            status = runner.run()
        for process in multiprocessing.active_children():
            process.join()
    with open(options.csv, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(_COLUMNS)
        for minute, ended in sorted(returns.items()):
            who = [options.csv.stem, options.game, "Sample Factory's APPO", options.seed]
            played = [f"{steps[minute] / 1e6:.6g}", len(ended), f"{statistics.fmean(ended):.6g}"]
            table.writerow([*who, *played, minute])
    return 0 if status == ExperimentStatus.SUCCESS else 1


if __name__ == "__main__":
    sys.exit(main())

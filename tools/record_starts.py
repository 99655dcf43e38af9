"""Records the starts that `--mode=test --starts=human` begins Atari games at.

  python tools/record_starts.py --level_name=atari57 --human_starts_dir=starts --logdir=runs/atari57
  python tools/record_starts.py --level_name=pong,boxing --human_starts_dir=starts --random
  python tools/record_starts.py --level_name=pong --human_starts_dir=starts --states=recorded

The player is the policy of a run's newest checkpoint (`--logdir`) or samples its actions uniformly
(`--random`). Starts are sampled uniformly from all steps of the games it plays. `--states` instead
takes the emulator's states from elsewhere, such as from people's games. It is a directory with
files `<game>/*`, which are taken in the order of their names. Each holds the bytes of ale-py's
`ALEInterface.cloneSystemState().serialize()`.

Writes `<game>.npz` for each game, in place of an older one; the module
`scalable_agent_popart.suites.atari.starts` describes the format. Scores from starts of another
player cannot be compared with the papers' human-starts scores; name the player with them.
"""

if __name__ == "__main__":
    import start  # noqa: F401

import bisect
import functools
import itertools
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from absl import flags

from environments import ArraySpec, StepOutput
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.run import Run
from scalable_agent_popart.suites import EnvironmentOptions
from scalable_agent_popart.suites.atari import atari57
from scalable_agent_popart.suites.atari import starts as atari_starts
from scalable_agent_popart.suites.atari.emulator import MAX_NOOPS, Emulator
from scalable_agent_popart.suites.checked import SerialEnvironments
from scalable_agent_popart.system import program, tensorflow_import

FLAGS = flags.FLAGS

# A player maps the output of each step `[1, ...]` to an action.
_Player = Callable[[StepOutput], int]

_NUM_ACTIONS = atari57.SUITE.action_sets["full"]


def define_flags() -> None:
    """Defines the tool's flags, which other programs of this process may have, too."""
    flags.DEFINE_string("level_name", None, "A game, games, or atari57.", required=True)
    flags.DEFINE_string("human_starts_dir", None, "Directory to write to.", required=True)
    flags.DEFINE(program.Integer(1), "num_starts", 100, "Starts of each game.")
    flags.DEFINE(program.Integer(1), "num_games", 10, "Whole games played of each game.")
    flags.DEFINE(program.Integer(0, 2**31 - 1), "seed", 1, "Random seed.")
    flags.DEFINE_string("logdir", None, "Run directory of the agent that plays.")
    flags.DEFINE_boolean("random", None, "Whether actions are sampled uniformly.")
    flags.DEFINE_string("states", None, "Directory of states recorded elsewhere.")
    flags.mark_flags_as_mutual_exclusive(["logdir", "random", "states"], required=True)


def main(argv: list[str]) -> None:
    """Records every game."""
    if len(argv) > 1:
        raise UserError(f"{argv[1]!r} is not a flag; flags are written --name=value")
    for name in ("human_starts_dir", "logdir", "states"):  # The experiment does the same.
        if (path := FLAGS[name].value) is not None:
            FLAGS[name].value = os.path.expanduser(path)
    if not FLAGS.human_starts_dir or not (FLAGS.logdir or FLAGS.random or FLAGS.states):
        raise UserError("--human_starts_dir, and --logdir or --states, must not be empty")
    for name in ("num_starts", "num_games"):
        if FLAGS.states and FLAGS[name].present:
            raise UserError(f"--{name} means nothing to --states; leave it out")
    config = _make_config()
    options = config.environment_options(training=False)
    config.suite.check(options)
    recorded: Iterable[tuple[str, list[bytes]]]
    if FLAGS.states:  # All are checked before anything is written.
        recorded = [(game, _collect(game, options)) for game in config.suite.tasks]
    else:
        make_player = _policy_player(config) if FLAGS.logdir else _random_player
        how = (FLAGS.num_starts, FLAGS.num_games, FLAGS.seed, options)
        recorded = ((game, record_starts(game, make_player(), *how)) for game in config.suite.tasks)
    origin = FLAGS.states or f"{FLAGS.num_games} games"
    Path(FLAGS.human_starts_dir).mkdir(parents=True, exist_ok=True)
    for game, states in recorded:
        path = atari_starts.write_starts(FLAGS.human_starts_dir, game, states)
        frames = atari_starts.frames_before(states)
        after = f"after {frames.min():,} to {frames.max():,} frames"
        print(f"{game}: {len(frames)} starts of {origin}, {after}, in {path}")


def _make_config() -> Config:
    """Returns the configuration of the run in --logdir for a test; without one, the defaults."""
    given = {"level_name": FLAGS.level_name, "seed": FLAGS.seed, "mode": "test"}
    if FLAGS.logdir:
        config = Run.open(FLAGS.logdir).config.for_test({**given, "logdir": FLAGS.logdir})
    else:
        config = Config.from_flags(given)
    if config.suite.name != atari57.SUITE.name:
        raise UserError(f"{FLAGS.logdir or FLAGS.level_name} plays {config.suite.name}, not Atari")
    return config


def _random_player() -> _Player:
    generator = np.random.default_rng([FLAGS.seed, 1])
    return lambda output: int(generator.integers(_NUM_ACTIONS))


def _policy_player(config: Config) -> Callable[[], _Player]:
    tensorflow_import.import_quietly()
    from scalable_agent_popart.evaluation import evaluate  # noqa: PLC0415
    from scalable_agent_popart.system import hardware  # noqa: PLC0415

    hardware.prepare_process()
    saved = evaluate.SavedPolicy(Run.open(config.logdir), config, num_environments=1)
    saved.restore()
    policy, only = saved.policy, np.array([0])

    def make_player() -> _Player:
        policy.forget(only)
        return lambda output: int(policy.act(only, output).action[0])

    return make_player


def _collect(game: str, options: EnvironmentOptions) -> list[bytes]:
    """Reads the states of a game from --states and tries each."""
    paths = sorted(Path(FLAGS.states, game).glob("*"))
    if not paths:
        raise UserError(f"--states: there are no files {Path(FLAGS.states, game)}/*")
    emulator = Emulator(game, options)
    states = [path.read_bytes() for path in paths]
    for path, state in zip(paths, states, strict=True):
        if fault := emulator.fault(state):
            raise UserError(f"{path} is {fault}; leave it out")
    return states


def record_starts(
    game: str,
    act: _Player,
    num_starts: int,
    num_games: int,
    seed: int,
    options: EnvironmentOptions,
) -> list[bytes]:
    """Plays whole games, each after 1 to 30 no-ops, and samples starts from them uniformly.

    `act` is called with outputs that are `done` where a game begins. Starts are sampled from all
    agent steps after which the game continues; UserError if these are too few. They are returned
    in random order, so that the first few are a uniform sample, too.
    """
    generator = np.random.default_rng(seed)
    emulator, second = Emulator(game, options, seed), Emulator(game, options)
    # Each state gets a random key, and those with the smallest keys stay, in the order of keys.
    chosen: list[tuple[float, bytes]] = []
    noops = (int(generator.integers(1, MAX_NOOPS + 1)) for _ in itertools.count())
    begun = map(emulator.begin, noops)
    make = functools.partial(atari_starts.Game, emulator, range(_NUM_ACTIONS), begun)
    observation = ArraySpec((options.height, options.width, 1), np.uint8)
    played = SerialEnvironments([make], np.zeros(1, np.int32), [game], observation)
    output = played.reset()
    while num_games:
        played.send(np.array([act(output)]))
        output = played.receive()
        if output.done[0]:
            num_games -= 1
            continue
        key = generator.random()
        if len(chosen) < num_starts or key < chosen[-1][0]:
            state = emulator.state
            # The frame that draws the screen may end the game.
            if second.fault(state) is None:
                bisect.insort(chosen, (key, state))
                del chosen[num_starts:]
    if len(chosen) < num_starts:
        raise UserError(f"{game}: only {len(chosen)} points to start from; play more games")
    return [state for _, state in chosen]


if __name__ == "__main__":
    define_flags()
    program.run(main, FLAGS, OSError)

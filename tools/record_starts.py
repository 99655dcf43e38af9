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
from collections.abc import Callable
from pathlib import Path

import numpy as np
from absl import flags

import scalable_agent_popart
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.suites import EnvironmentOptions
from scalable_agent_popart.suites.atari import atari57
from scalable_agent_popart.suites.atari import starts as atari_starts
from scalable_agent_popart.suites.atari.emulator import MAX_NOOPS, NUM_ACTIONS, Emulator
from scalable_agent_popart.system import program

FLAGS = flags.FLAGS

# A player maps an observation, its reward, and whether a game begins with it, to an action.
_Player = Callable[[np.ndarray, float, bool], int]


def main(argv: list[str]) -> None:
    """Records every game."""
    if len(argv) > 1:
        raise UserError(f"{argv[1]!r} is not a flag; flags are written --name=value")
    given = {"level_name": FLAGS.level_name, "seed": FLAGS.seed, "mode": "test"}
    agent, config = None, Config.from_flags(given)
    if FLAGS.logdir:
        agent = scalable_agent_popart.load(FLAGS.logdir, network=FLAGS.network)
        config = agent.config.for_test(given | {"network": agent.config.network})
    if config.suite.name != atari57.SUITE.name:
        raise UserError(f"{FLAGS.level_name} is of {config.suite.name}, not of Atari")
    options = config.environment_options(training=False)
    config.suite.check(options)
    games = config.suite.tasks
    # All states from elsewhere are checked before anything is written.
    collected = {game: _collect(game, options) for game in games} if FLAGS.states else {}
    how = (FLAGS.num_starts, FLAGS.num_games, FLAGS.seed, options)
    origin = FLAGS.states or f"{FLAGS.num_games} games"
    directory = Path(FLAGS.human_starts_dir).expanduser()
    directory.mkdir(parents=True, exist_ok=True)
    for game in games:
        states = collected.get(game) or record_starts(game, _make_player(agent), *how)
        path = atari_starts.write_starts(directory, game, states)
        frames = atari_starts.frames_before(states)
        after = f"after {frames.min():,} to {frames.max():,} frames"
        print(f"{game}: {len(frames)} starts of {origin}, {after}, in {path}")


def _make_player(agent: "scalable_agent_popart.TrainedAgent | None") -> _Player:
    """Makes a player of one game, which samples from the agent's policy or uniformly."""
    if agent:
        return functools.partial(agent.act, state=agent.begin(seed=FLAGS.seed))
    generator = np.random.default_rng([FLAGS.seed, 1])
    return lambda *_: int(generator.integers(NUM_ACTIONS))


def _collect(game: str, options: EnvironmentOptions) -> list[bytes]:
    """Reads the states of a game from --states and tries each."""
    emulator, states = Emulator(game, options), []
    for path in sorted(Path(FLAGS.states, game).expanduser().glob("*")):
        states.append(path.read_bytes())
        if fault := emulator.fault(states[-1]):
            raise UserError(f"{path} is {fault}; leave it out")
    if not states:
        raise UserError(f"--states={FLAGS.states} holds no states of {game}")
    return states


def record_starts(
    game: str, act: _Player, num_starts: int, num_games: int, seed: int, options: EnvironmentOptions
) -> list[bytes]:
    """Plays whole games, each after 1 to 30 no-ops, and samples starts from them uniformly.

    Starts are sampled from all agent steps after which the game continues; UserError if these are
    too few. They are returned in random order, so that the first few are a uniform sample, too.
    """
    generator = np.random.default_rng(seed)
    emulator, second = Emulator(game, options, seed), Emulator(game, options)
    # Each state gets a random key, and those with the smallest keys stay, in the order of keys.
    chosen: list[tuple[float, bytes]] = []

    def begin() -> np.ndarray:
        return emulator.begin(int(generator.integers(1, MAX_NOOPS + 1)))

    reward, over, frame = 0.0, True, begin()
    while num_games:
        reward, over, frame = emulator.step(act(frame, reward, over))
        if over:
            num_games -= 1
            frame = begin()
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
    flags.DEFINE_string("level_name", None, "A game, games, or atari57.", required=True)
    flags.DEFINE_string("human_starts_dir", None, "Directory to write to.", required=True)
    flags.DEFINE(program.Integer(1), "num_starts", 100, "Starts of each game.")
    flags.DEFINE(program.Integer(1), "num_games", 10, "Whole games played of each game.")
    flags.DEFINE(program.Integer(0, 2**31 - 1), "seed", 1, "Random seed.")
    flags.DEFINE_string("logdir", None, "Run directory of the agent that plays.")
    flags.DEFINE_string("network", None, "The run's --network, if that is MODULE:NAME.")
    flags.DEFINE_boolean("random", None, "Whether actions are sampled uniformly.")
    flags.DEFINE_string("states", None, "Directory of states recorded elsewhere.")
    flags.mark_flags_as_mutual_exclusive(["logdir", "random", "states"], required=True)
    program.run(main, FLAGS, OSError)

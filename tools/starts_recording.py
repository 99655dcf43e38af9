"""Recording of human starts: games are played, and points to start from are sampled from them."""

import bisect
import itertools
from collections.abc import Callable

import numpy as np

from environments import ArraySpec, SerialEnvironments, StepOutput
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.suites.atari.emulator import MAX_NOOPS, Emulator
from scalable_agent_popart.suites.atari.starts import Game
from scalable_agent_popart.suites.suite import EnvironmentOptions


def record_starts(
    game: str,
    act: Callable[[StepOutput], int],
    num_starts: int,
    num_games: int,
    seed: int,
    options: EnvironmentOptions,
) -> list[bytes]:
    """Plays whole games, each after 1 to 30 no-ops, and samples starts from them.

    Args:
      act: the player, called with outputs `[1, ...]`, which are `done` where a game begins.
      num_starts: sampled uniformly from all agent steps after which the game goes on; with fewer
        steps than that, a UserError is raised.
      seed: of the no-ops and the sample, below 2^31.

    Returns states in random order: the first few are a uniform sample, too.
    """
    generator = np.random.default_rng(seed)
    emulator, second = Emulator(game, options, seed), Emulator(game, options)
    # The states with the smallest of random keys, in the order of the keys.
    chosen: list[tuple[float, bytes]] = []
    noops = (int(generator.integers(1, MAX_NOOPS + 1)) for _ in itertools.count())
    game_environment = Game(emulator, map(emulator.begin, noops))
    observation = ArraySpec((options.height, options.width, 1), np.uint8)
    played = SerialEnvironments([game_environment], np.zeros(1, np.int32), [game], observation)
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
            # The frame that draws the screen may be the one that ends the game.
            if second.fault(state) is None:
                bisect.insort(chosen, (key, state))
                del chosen[num_starts:]
    if len(chosen) < num_starts:
        raise UserError(f"{game}: only {len(chosen)} points to start from; play more games")
    return [state for _, state in chosen]

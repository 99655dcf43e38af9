"""The Atari game that every peer plays, by `gymnasium`'s own preprocessing."""

import gymnasium
import setting


def make_game(name: str, render_mode: str | None = None) -> gymnasium.Env:
    """One game with all 18 actions, as `[84, 84]` bytes a step, not stacked yet."""
    game = gymnasium.make(
        f"ale_py:ALE/{setting.rom(name)}-v5",
        frameskip=1,
        repeat_action_probability=0.0,
        full_action_space=True,
        render_mode=render_mode,
    )
    return gymnasium.wrappers.AtariPreprocessing(
        game,
        frame_skip=setting.FRAME_SKIP,
        screen_size=setting.FRAME_SIZE,
        terminal_on_life_loss=True,
    )

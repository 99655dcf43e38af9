"""A short run on the real training path masters a game of Catch."""

from pathlib import Path

from scalable_agent_popart.config import Config
from scalable_agent_popart.training import trainer
from tests.fakes.programs import metrics


def test_popart_impala_learns_catch_at_a_small_reward_scale(tmp_path: Path) -> None:
    config = Config.from_flags(
        {
            "level_name": "catch_0.01",
            "use_popart": True,
            "total_environment_frames": 150_000,
            "logdir": str(tmp_path),
        }
    )
    trainer.train(config)
    # Random play is 0, and 100 games have a standard error of about 8 around it. Threads race, so
    # runs begin to learn at some 60,000 to 80,000 frames; they catch nearly all by 120,000.
    assert metrics(tmp_path)[-1]["mean"] > 80

"""Distributions of tuned hyperparameters, with the ranges of IMPALA's appendix."""

from typing import NamedTuple


class LogUniform(NamedTuple):
    """A value whose logarithm is uniform on [log low, log high]."""

    low: float
    high: float


class Uniform(NamedTuple):
    low: float
    high: float


class OneOf(NamedTuple):
    values: tuple[float, ...]


Distribution = LogUniform | Uniform | OneOf

PAPER: dict[str, Distribution] = {  # By flag.
    "entropy_cost": LogUniform(5e-5, 1e-2),
    "learning_rate": LogUniform(5e-6, 5e-3),
    "epsilon": OneOf((1e-1, 1e-3, 1e-5, 1e-7)),
}
PAPER_ATARI: dict[str, Distribution] = {**PAPER, "max_grad_norm": Uniform(10.0, 100.0)}

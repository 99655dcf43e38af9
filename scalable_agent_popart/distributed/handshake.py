"""What a learner and its actor jobs must agree on before they exchange anything else."""

import zlib
from collections.abc import Mapping

import tensorflow as tf

from scalable_agent_popart.agent.agent import Agent
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.runs.config import Config

_MAX_NAMED, _MAX_VALUE = 3, 60  # Differences in a message, and characters of a value.


def handshake(config: Config, agent: Agent, spec: Rollout) -> dict[str, str]:
    """Returns the settings that a learner and its actors must agree on, as text."""
    # Other versions of the program may differ in shapes despite the same flags.
    leaves = [*agent.trainable_variables, *tf.nest.flatten(spec)]
    shapes = repr([(leaf.shape.as_list(), leaf.dtype.name) for leaf in leaves])
    settings = {
        **{f"--{flag}": value for flag, value in config.shared.items()},
        "--pbt_member": config.pbt_member,
        "--dataset_path given": not config.remarks(),
        "the checksum of all shapes": zlib.crc32(shapes.encode()),
        # A rollout names its task by this number.
        **{f"task {i}": task for i, task in enumerate(config.suite.tasks)},
    }
    return {name: str(value) for name, value in settings.items()}


def differences(own: Mapping[str, str], theirs: Mapping[str, str], name: str) -> str:
    """Describes the first differences between an actor job's settings and the learner's."""

    def show(value: str | None) -> str:
        text = str(value)
        return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 3]}..."

    differing = [key for key in {**own, **theirs} if theirs.get(key) != own.get(key)]
    lines = [
        f"{key} is {show(theirs.get(key))} at the learner and {show(own.get(key))} at {name}"
        for key in differing[:_MAX_NAMED]
    ]
    if more := differing[_MAX_NAMED:]:
        lines.append(f"and {len(more)} more differ")
    return "; ".join(lines)

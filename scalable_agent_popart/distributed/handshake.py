"""How actor jobs find their learner, and what both must agree on before they exchange anything."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from scalable_agent_popart.agent.agent import Agent
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.runs.config import Config, Use, flag_name
from scalable_agent_popart.runs.directory import write_atomically

_MAX_NAMED, _MAX_VALUE = 3, 60  # Differences in a message, and characters of a value.


def record_learner(logdir: str, address: str, finished_frames: int = 0) -> None:
    """Writes the learner's address for actor jobs, and the frames of a run that it finished."""
    record = {"address": address, "finished_frames": finished_frames}
    write_atomically(Path(logdir, "learner.json"), record)


def read_learner(logdir: str) -> tuple[str, int]:
    """Returns what `record_learner` wrote; raises FileNotFoundError if it wrote nothing."""
    record = json.loads(Path(logdir, "learner.json").read_text())
    return record["address"], record["finished_frames"]


def handshake(config: Config, agent: Agent, spec: Rollout) -> dict[str, str]:
    """Returns the settings that a learner and its actors must agree on, as text."""
    # Other versions of the program may differ in shapes despite the same flags.
    leaves = [*agent.trainable_variables, *tf.nest.flatten(spec)]
    shapes = repr([(leaf.shape.as_list(), leaf.dtype.name) for leaf in leaves])
    settings = {
        # A rollout names its task by the task's number.
        **config.required(Use.ROLLOUTS),
        "--dataset_path given": not config.remarks(),
        "the checksum of all shapes": zlib.crc32(shapes.encode()),
    }
    return {flag_name(name): str(value) for name, value in settings.items()}


def differences(actor: Mapping[str, str], learner: Mapping[str, str], name: str) -> str:
    """Describes the first differences between the named actor job's settings and the learner's."""

    def show(value: str | None) -> str:
        text = str(value)
        return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 3]}..."

    differing = [key for key in {**actor, **learner} if learner.get(key) != actor.get(key)]
    lines = [
        f"{key} is {show(learner.get(key))} at the learner and {show(actor.get(key))} at {name}"
        for key in differing[:_MAX_NAMED]
    ]
    if (more := len(differing) - _MAX_NAMED) > 0:
        lines.append(f"and {more} more differ")
    return "; ".join(lines)

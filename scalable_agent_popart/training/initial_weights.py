"""The weights of another run that a new run starts with."""

from typing import Any

import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.runs.config import Config, Use
from scalable_agent_popart.runs.run import Run


def take_over(config: Config, learner: Learner) -> str:
    """Copies into a new learner what its agent and that of `--init_from` have in common.

    This is the torso always. With the same actions it is the whole agent and, for tasks that both
    know by name, the value heads with their statistics, if both value the same rewards in the same
    way. The optimiser and all counts start as in any new run.

    Returns in words what was taken. Raises UserError as `Run.open_initial`, and if the checkpoint
    cannot be read.
    """
    run = Run.open_initial(config)
    other, saved = run.config, factory.make_saved_parts(run.config)
    try:
        run.restore(learner=saved)
    except UserError as error:
        raise UserError(f"--init_from: {error}") from error
    agent, head = saved.agent, saved.head
    message = f"starts with {config.init_from} at {int(saved.frames):,} frames"

    if config.differences(other, Use.POLICY):
        assign(learner.agent.torso_variables, agent.torso_variables)
        return f"{message}: its torso; the rest is new, since its actions are others"
    assign(learner.agent.trainable_variables, agent.trainable_variables)
    if changed := config.differences(other, Use.VALUES):
        flags = ", ".join(f"--{name}" for name in changed)
        return f"{message}: network and policy; its values are new (other {flags})"
    tasks, other_tasks = config.suite.tasks, other.suite.tasks
    if not (config.use_popart or config.multi_head):
        tasks = other_tasks = ("all tasks",) if {*tasks} & {*other_tasks} else ()
    shared = [task for task in tasks if task in other_tasks]
    ids, other_ids = ([names.index(task) for task in shared] for names in (tasks, other_tasks))
    for name in ("weights", "bias", "shift", "second_moment", "count"):
        variable, source = getattr(learner.head, name), getattr(head, name)
        if shared and variable is not None and source is not None:
            variable.scatter_nd_update([[i] for i in ids], tf.gather(source, other_ids))
    return f"{message}: network and policy, and the values of {', '.join(shared) or 'no task'}"


def assign(variables: Any, sources: Any) -> None:
    for variable, source in zip(variables, sources, strict=True):
        variable.assign(source)

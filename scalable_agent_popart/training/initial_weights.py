"""The weights of another run that a new run starts with."""

import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.runs import checkpoints
from scalable_agent_popart.runs.directory import RunDirectory

_SAME = ("network", "padding", "use_lstm", "height", "width")


def take_over(config: Config, learner: Learner) -> str:
    """Copies into a new learner what its agent and that of `--init_from` have in common.

    This is the torso always. With the same actions it is the whole agent and, for tasks that both
    know by name, the value heads with their statistics. The optimiser and all counts begin anew.
    Returns in words what was taken. Raises UserError if there is no such run or checkpoint, or if
    its network is another.
    """
    directory = RunDirectory(config.init_from)
    directory.refuse_population()
    other = directory.read_config(config.suite)
    if other is None:
        raise UserError(f"--init_from={config.init_from} holds no run")
    differences = [(f"--{n}", getattr(other, n), getattr(config, n)) for n in _SAME]
    channels = other.suite.num_channels, config.suite.num_channels
    differences.append(("the number of channels", *channels))
    differing = [f"{n} was {then} and is {now}" for n, then, now in differences if then != now]
    if differing:
        raise UserError(f"--init_from={config.init_from} differs: {'; '.join(differing)}")
    other_spec = factory.make_rollout_spec(other)
    agent, head = factory.make_agent(other, other_spec), factory.make_head(other)
    features = agent.create_variables(other_spec)
    head(features, tf.zeros(features.shape[:-1], tf.int32))
    frames = tf.Variable(0, dtype=tf.int64)
    saved = tf.train.Checkpoint(agent=agent, head=head, frames=frames)
    checkpoints.restore_at(directory.checkpoints, None, learner=saved)
    told = f"starts with {config.init_from} at {int(frames):,} frames"

    same_actions = (other.suite.name, other.action_set) == (config.suite.name, config.action_set)
    if not same_actions or other.num_actions != config.num_actions:
        _assign(learner.agent.torso_variables, agent.torso_variables)
        return f"{told}: its convolutions; the rest is new, since its actions are others"
    _assign(learner.agent.trainable_variables, agent.trainable_variables)
    own = learner.head
    by_task, its_by_task = (each.use_popart or each.multi_head for each in (config, other))
    if (by_task, own.normalise) != (its_by_task, head.normalise):
        return f"{told}: network and policy; its values are of another agent, and new"
    tasks, others = config.suite.tasks, other.suite.tasks
    if not by_task:
        tasks, others = (("all tasks",), ("all tasks",)) if {*tasks} & {*others} else ((), ())
    shared = [task for task in tasks if task in others]
    ids, other_ids = ([names.index(task) for task in shared] for names in (tasks, others))
    pairs = [(own.weights, head.weights), (own.bias, head.bias), (own.shift, head.shift)]
    pairs += [(own.second_moment, head.second_moment), (own.count, head.count)]
    for variable, source in pairs:
        if shared and variable is not None and source is not None:
            rows = tf.gather(source, other_ids)
            variable.scatter_nd_update([[i] for i in ids], rows)
    return f"{told}: network and policy, and the values of {', '.join(shared) or 'no task'}"


def _assign(variables: tuple[tf.Variable, ...], sources: tuple[tf.Variable, ...]) -> None:
    for variable, source in zip(variables, sources, strict=True):
        variable.assign(source)

"""Torsos from outside of the package are checked before they are trained."""

import functools
from typing import Any

import pytest
import sonnet as snt
import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs.config import Config


class Mean(snt.Module):
    """The mean colour, once for each `width`; `given` replaces parts of its behaviour."""

    def __init__(self, width: int = 1, trainable: bool = True, **given: Any):
        super().__init__()
        self._scale = tf.Variable(tf.ones([width]), trainable=trainable)
        self._compute = given.get("compute", lambda means: means)

    def __call__(self, images: tf.Tensor) -> Any:
        means = tf.reduce_mean(tf.cast(images, tf.float32), axis=[2, 3, 4])
        return self._compute(means[..., tf.newaxis] * self._scale)


NUMBER = 3
wide = functools.partial(Mean, 7)
fixed = functools.partial(Mean, trainable=False)
cut = functools.partial(Mean, compute=lambda means: means[1:])
flat = functools.partial(Mean, compute=lambda means: means[..., 0])
half = functools.partial(Mean, compute=lambda means: tf.cast(means, tf.float16))
unused = functools.partial(Mean, compute=lambda means: tf.zeros_like(means))
pair = functools.partial(Mean, compute=lambda means: (means, means))
static = functools.partial(Mean, compute=lambda means: tf.reshape(means, means.shape))


def _config(name: str, level_name: str = "catch5", **given: Any) -> Config:
    return Config.from_flags({"level_name": level_name, "network": name, **given})


@pytest.mark.parametrize("level_name", ["catch5", "pong"])
def test_a_torso_may_have_any_number_of_features(level_name: str) -> None:
    config = _config(f"{__name__}:wide", level_name)
    factory.check_network(config)
    agent = factory.make_agent(config, spec := factory.make_rollout_spec(config))
    assert agent.create_variables(spec).shape == (1, 1, 7 + 1 + config.num_actions)
    assert [each.shape for each in agent.torso_variables] == [(7,)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone:Torso", "Torso of gone .*No module named 'gone'"),
        ("popart:Torso", "popart "),
        (f"{__name__}:Gone", "Gone of .*no attribute 'Gone'"),
        (f"{__name__}:NUMBER", "NUMBER .*'int' object is not callable"),
        ("builtins:list", "builtins:list .*sonnet.Module"),
        ("sonnet:Module", r"sonnet:Module .*\(2, 3, 10, 5, 3\) .*not callable"),
        (f"{__name__}:static", "static .*images"),
        (f"{__name__}:cut", r"cut .*float32 \(1, 3, 1\) .*float32 \(2, 3, D\)"),
        (f"{__name__}:flat", r"flat .*float32 \(2, 3\)"),
        (f"{__name__}:half", r"half .*float16 \(2, 3, 1\)"),
        (f"{__name__}:pair", "pair .*tuple"),
        (f"{__name__}:unused", "unused .*gradient.*Variable:0"),
        (f"{__name__}:fixed", "fixed .*trainable.*mean/Variable:0"),
    ],
)
def test_what_is_no_torso_is_refused_in_a_line(name: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^--network: .*{message}") as error:
        factory.check_network(_config(name))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "given", [{"image_scale": 2.0}, {"zero_mean_filters": True}, {"precision": "bfloat16"}]
)
def test_flags_of_the_packages_torsos_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"--precision .*{__name__}:wide"):
        _config(f"{__name__}:wide", **given)
    with pytest.raises(UserError, match=r"--network .*MODULE:NAME.* wide"):
        _config("wide")

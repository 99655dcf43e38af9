"""The configuration: defaults by suite, and what is refused."""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from absl import flags

import experiment
from scalable_agent_popart import suites
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError

_ROOT = Path(__file__).resolve().parents[2]

# Numbers that may be zero, that lie between zero and one, and all others.
_NOT_NEGATIVE = ("entropy_cost", "baseline_cost", "max_grad_norm", "momentum", "seed")
_NOT_NEGATIVE += ("pixel_control_cost", "population_size", "pbt_burn_in_frames", "actor_threads")
_OTHERS = ("task", "pbt_member")
_WITHIN_ONE = ("discounting", "decay", "pixel_control_discount")
_POSITIVE = [
    field.name
    for field in dataclasses.fields(Config)
    if field.type in (int, float) and field.name not in (*_NOT_NEGATIVE, *_WITHIN_ONE, *_OTHERS)
]
_CHOICES = {
    "mode": ("train", "test", "pbt"),
    "learning_rate_schedule": ("linear", "constant"),
    "network": ("deep", "shallow"),
    "reward_clipping": ("abs_one", "none", "soft_asymmetric", "oar"),
    "popart_order": ("gradient_first", "statistics_first"),
    "popart_second_moment_of": ("squares", "mean"),
    "precision": ("float32", "bfloat16", "auto"),
    "starts": ("noop", "human"),
    "job_name": ("learner", "actor", "evaluator"),
}


def _config(level_name: str = "catch5", /, **given: Any) -> Config:
    return Config.from_flags({"level_name": level_name, **given})


def _refusal(level_name: str = "catch5", /, **given: Any) -> str:
    with pytest.raises(UserError) as error:
        _config(level_name, **given).check_playable()
    message = str(error.value)
    assert "\n" not in message
    return message


# Defaults.


def test_defaults_of_atari_are_the_papers() -> None:
    config = _config("atari57")
    assert (config.unroll_length, config.batch_size, config.num_action_repeats) == (20, 32, 4)
    assert (config.height, config.width, config.network) == (84, 84, "deep")
    assert config.use_lstm is False
    assert config.reward_clipping == "abs_one"
    assert (config.learning_rate, config.entropy_cost) == (6e-4, 0.01)
    assert (config.epsilon, config.max_grad_norm) == (0.01, 40.0)


def test_defaults_of_every_suite_are_those_of_the_method() -> None:
    for level_name in ("atari57", "catch5"):
        config = _config(level_name)
        assert (config.decay, config.momentum) == (0.99, 0.0)
        assert (config.baseline_cost, config.discounting) == (0.5, 0.99)
        assert (config.popart_scale_lower_bound, config.popart_scale_upper_bound) == (1e-4, 1e6)
        assert config.popart_second_moment_of == "squares"
        assert config.popart_order == "gradient_first"
        assert (config.use_popart, config.multi_head, config.pixel_control) == (False,) * 3
        assert config.pixel_control_discount == 0.9
        assert config.mode == "train"
    assert _config("atari57").popart_step_size == 3e-4


def test_defaults_of_catch_keep_rewards_as_they_are_and_its_one_board_size() -> None:
    config = _config("catch5")
    assert config.reward_clipping == "none"
    assert (config.height, config.width, config.num_action_repeats) == (10, 5, 1)


@pytest.mark.parametrize(
    ("level_name", "num_actors"),
    [("pong", 32), ("pong,boxing", 32), ("pong,boxing,qbert", 33), ("catch5", 35), ("atari57", 57)],
)
def test_default_actors_are_the_fewest_equal_shares_from_32_on(
    level_name: str, num_actors: int
) -> None:
    config = _config(level_name)
    assert config.num_actors == num_actors
    assert config.num_actors % len(config.suite.tasks) == 0


@pytest.mark.parametrize(
    ("level_name", "frames"),
    [("pong", 200_000_000), ("pong,boxing", 400_000_000), ("atari57", 11_400_000_000)],
)
def test_default_frames_are_200_million_a_game(level_name: str, frames: int) -> None:
    assert _config(level_name).total_environment_frames == frames


def test_given_flag_wins_over_the_suites_default_and_moves_no_other() -> None:
    given = {
        "unroll_length": 7,
        "batch_size": 3,
        "num_actors": 80,
        "total_environment_frames": 1234,
        "learning_rate": 0.5,
        "use_lstm": True,
        "network": "shallow",
        "reward_clipping": "oar",
        "max_grad_norm": 0.0,
        "entropy_cost": 0.0,
        "height": 42,
        "popart_step_size": 1.0,
    }
    default, config = _config("atari57"), _config("atari57", **given)
    changed = {
        field.name
        for field in dataclasses.fields(Config)
        if getattr(default, field.name) != getattr(config, field.name)
    }
    assert changed == set(given)
    assert all(getattr(config, name) == value for name, value in given.items())


def test_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        _config().seed = 3  # type: ignore[misc]


def test_with_flags_keeps_the_rest_and_checks_again() -> None:
    config = _config(seed=5, num_actors=10)
    changed = config.with_flags({"mode": "test", "test_num_episodes": 3})
    assert changed == dataclasses.replace(config, mode="test", test_num_episodes=3)
    with pytest.raises(UserError, match="--batch_size"):
        config.with_flags({"batch_size": 0})


@pytest.mark.parametrize(
    ("given", "name", "num_heads"),
    [
        ({}, "IMPALA", 1),
        ({"multi_head": True}, "MultiHead-IMPALA", 5),
        ({"use_popart": True}, "PopArt-IMPALA", 5),
        ({"use_popart": True, "multi_head": True}, "PopArt-IMPALA", 5),
    ],
)
def test_agents_have_the_papers_names_and_a_head_for_each_task_if_they_tell_them_apart(
    given: dict[str, bool], name: str, num_heads: int
) -> None:
    config = _config(**given)
    assert config.agent_name == name
    assert config.num_heads == num_heads


def test_environment_options_are_the_configurations() -> None:
    config = _config("pong", num_action_repeats=3, height=60, width=50)
    for training in (True, False):
        expected = suites.EnvironmentOptions(3, 60, 50, "full", training)
        assert config.environment_options(training) == expected


# What is refused.


@pytest.mark.parametrize("given", [{}, {"level_name": ""}, {"level_name": None}])
def test_missing_level_is_refused_with_the_suites(given: dict) -> None:
    with pytest.raises(UserError, match=r"--level_name is missing.*atari57, catch5"):
        Config.from_flags(given)


@pytest.mark.parametrize("name", _POSITIVE)
@pytest.mark.parametrize("value", [0, -1])
def test_value_that_must_be_positive_is_refused_by_name(name: str, value: int) -> None:
    message = _refusal("atari57", **{name: value})
    assert f"--{name}" in message
    assert str(value) in message


@pytest.mark.parametrize("name", _NOT_NEGATIVE)
def test_value_may_be_zero_but_not_below(name: str) -> None:
    assert getattr(_config(**{name: 0}), name) == 0
    message = _refusal(**{name: -1})
    assert f"--{name}" in message
    assert "-1" in message


@pytest.mark.parametrize("name", _WITHIN_ONE)
def test_value_must_lie_between_zero_and_one(name: str) -> None:
    for value in (0.0, 1.0):
        assert getattr(_config(**{name: value}), name) == value
    for value in (-0.1, 1.5):
        message = _refusal(**{name: value})
        assert f"--{name}" in message
        assert str(value) in message


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Config) if f.type is float])
def test_nan_is_refused_wherever_a_number_is_asked_for(name: str) -> None:
    message = _refusal(**{name: float("nan")})
    assert f"--{name}" in message


@pytest.mark.parametrize(("name", "choices"), _CHOICES.items())
def test_choice_that_does_not_exist_is_refused_with_those_that_do(
    name: str, choices: tuple[str, ...]
) -> None:
    for choice in () if name in ("starts", "job_name") else choices:
        given = {name: choice, "population_size": 2 * (choice == "pbt")}
        assert getattr(_config(**given), name) == choice
    message = _refusal(**{name: "nonsense"})
    assert f"--{name}" in message
    assert all(choice in message for choice in choices)


def test_step_size_above_one_is_refused() -> None:
    assert _config(popart_step_size=1.0).popart_step_size == 1.0
    assert "--popart_step_size" in _refusal(popart_step_size=1.01)


def test_scale_bounds_in_the_wrong_order_are_refused() -> None:
    _config(popart_scale_lower_bound=2.0, popart_scale_upper_bound=2.0)
    message = _refusal(popart_scale_lower_bound=2.0, popart_scale_upper_bound=1.0)
    for expected in ("--popart_scale_lower_bound", "--popart_scale_upper_bound", "2.0", "1.0"):
        assert expected in message


def test_fewer_actors_than_tasks_are_refused_with_the_numbers() -> None:
    assert _config("atari57", num_actors=57).num_actors == 57
    message = _refusal("atari57", num_actors=56)
    for expected in ("--num_actors=56", "57 tasks", "--level_name=atari57"):
        assert expected in message


def test_fewer_actors_than_tasks_are_no_matter_to_a_test() -> None:
    assert _config("atari57", num_actors=5, mode="test").num_actors == 5


def test_more_threads_than_actors_are_refused_with_the_numbers() -> None:
    assert _config("pong", num_actors=4, actor_threads=4).actor_threads == 4
    message = _refusal("pong", num_actors=4, actor_threads=5)
    assert "--actor_threads=5" in message
    assert "--num_actors=4" in message


def test_suite_without_its_emulator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install ale-py" in _refusal("pong")
    assert _config("catch5").suite.name == "catch5"


@pytest.mark.parametrize(
    ("name", "fixed"), [("width", 5), ("height", 10), ("num_action_repeats", 1)]
)
def test_board_of_catch_has_one_size(name: str, fixed: int) -> None:
    assert getattr(_config(**{name: fixed}), name) == fixed
    message = _refusal(**{name: fixed + 1})
    for expected in (f"--{name}", str(fixed), str(fixed + 1), "catch5"):
        assert expected in message


# Going on with a run, and testing it.


@pytest.mark.parametrize(
    "given",
    [
        {"network": "shallow"},
        {"use_lstm": True},
        {"use_popart": True},
        {"multi_head": True},
        {"pixel_control": True},
        {"height": 42},
        {"width": 42},
        {"num_action_repeats": 2},
        {"reward_clipping": "none"},
    ],
)
def test_differences_name_the_flag_and_both_values(given: dict[str, Any]) -> None:
    (name, value), *_ = given.items()
    before, now = _config("pong"), _config("pong", **given)
    assert now.differences(before) == [f"--{name} was {getattr(before, name)} and is {value}"]


def test_differences_of_several_flags_are_all_told() -> None:
    differences = _config("pong,boxing", use_lstm=True).differences(_config("pong"))
    assert [text.split()[0] for text in differences] == ["--level_name", "--use_lstm"]


def test_settings_that_may_change_between_starts_are_no_difference() -> None:
    changed = {"num_actors": 10, "actor_threads": 1, "batch_size": 2, "unroll_length": 3}
    schedule = {"total_environment_frames": 5, "learning_rate": 1.0, "entropy_cost": 0.5, "seed": 9}
    place = {"logdir": "/elsewhere", "log_seconds": 1.0, "mode": "test"}
    assert _config(**changed, **schedule, **place).differences(_config()) == []


def test_the_same_levels_written_otherwise_are_no_difference() -> None:
    assert _config("pong, boxing").differences(_config("pong,boxing")) == []
    five = ",".join(_config("catch5").suite.tasks)
    assert _config(five).differences(_config("catch5")) == []
    assert _config("boxing,pong").differences(_config("pong,boxing"))


@pytest.mark.parametrize("name", [*_POSITIVE, *_NOT_NEGATIVE])
def test_infinity_is_refused(name: str) -> None:
    assert f"--{name}" in _refusal(**{name: float("inf")})


def test_run_may_be_tested_on_some_or_other_levels_of_its_suite() -> None:
    trained = _config("pong,boxing", use_popart=True)
    for level_name in ("pong", "qbert", "atari57"):
        config = trained.for_test({"mode": "test", "level_name": level_name})
        assert config.suite.tasks == _config(level_name).suite.tasks


def test_run_may_not_be_tested_on_another_suite() -> None:
    trained = _config("catch5")
    with pytest.raises(UserError) as error:
        trained.for_test({"mode": "test", "level_name": "pong"})
    for expected in ("catch5", "pong", "atari57"):
        assert expected in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"), [("network", "shallow"), ("use_lstm", True), ("height", 42)]
)
def test_run_may_not_be_tested_with_another_network(name: str, value: Any) -> None:
    trained = _config("atari57")
    with pytest.raises(UserError) as error:
        trained.for_test({"mode": "test", "level_name": "pong", name: value})
    assert f"--{name} was {getattr(trained, name)} and is {value}" in str(error.value)
    assert "--level_name" not in str(error.value)


def test_what_is_asked_of_one_test_is_not_asked_of_the_next() -> None:
    trained = _config("pong", test_num_episodes=3, seed=5)
    again = trained.for_test({"mode": "test", "starts": "human", "human_starts_dir": "starts"})
    assert (again.test_num_episodes, again.starts, again.seed) == (200, "human", 5)
    assert again.for_test({"mode": "test"}).starts == "noop"


@pytest.mark.parametrize(
    ("level_name", "episodes"), [("pong", 200), ("atari57", 200), ("dmlab30", 500)]
)
def test_tests_are_as_long_as_the_papers(level_name: str, episodes: int) -> None:
    assert _config(level_name).test_num_episodes == episodes


def test_human_starts_come_from_a_directory_and_are_for_tests_of_atari() -> None:
    human = {"starts": "human", "human_starts_dir": "starts"}
    config = _config("pong", mode="test", **human)
    assert config.environment_options(training=False).human_starts_dir == "starts"
    assert "--starts is for --mode=test" in _refusal("pong", **human)
    for part in human.items():
        assert "go together" in _refusal("pong", mode="test", **dict([part]))
    for level_name in ("catch5", "dmlab30"):
        assert "has no human starts" in _refusal(level_name, mode="test", starts="human")
        assert "means nothing" in _refusal(level_name, mode="test", **human)
    assert "--record_video is for --mode=test" in _refusal("pong", record_video=True)


def test_an_experiment_is_what_shapes_learning() -> None:
    config = _config("pong")
    same = {"seed": 7, "logdir": "elsewhere", "num_actors": 40, "test_num_episodes": 3}
    assert _config("pong", **same).experiment == config.experiment
    for other in ({"learning_rate": 1e-3}, {"batch_size": 8}, {"use_lstm": True}):
        assert _config("pong", **other).experiment != config.experiment


@pytest.mark.parametrize(
    "given",
    [
        {"seed": 7},
        {"discounting": 0.5},
        {"batch_size": 8},
        {"learning_rate": 1e-3},
        {"popart_step_size": 0.1},
        {"precision": "bfloat16"},
        {"unroll_length": 5},
    ],
)
def test_flags_that_shape_learning_are_changes_that_are_refused(given: dict[str, Any]) -> None:
    ((name, value),) = given.items()
    then = _config("pong", precision="float32")
    now = then.with_flags(given)
    assert now.changes(then) == {name: (getattr(then, name), value)}
    assert now.refused_changes(then) == [f"--{name} was {getattr(then, name)} and is {value}"]


@pytest.mark.parametrize(
    "given",
    [
        {"num_actors": 40, "actor_threads": 1},
        {"logdir": "elsewhere", "log_seconds": 1.0, "checkpoint_seconds": 9.0, "xla": True},
        {"precision": "auto"},
        {"allow_changes": True},
        {"learner_address": "host:1234"},
    ],
)
def test_where_and_how_fast_a_run_goes_on_is_no_change(given: dict[str, Any]) -> None:
    then = _config("pong", precision="float32")
    assert then.with_flags(given).changes(then) == {}
    assert then.changes(then.with_flags(given)) == {}


def test_a_run_may_be_made_longer_which_is_a_change_all_the_same() -> None:
    then, now = _config("pong"), _config("pong", total_environment_frames=10**9)
    assert now.changes(then) == {"total_environment_frames": (200_000_000, 10**9)}
    assert now.refused_changes(then) == []


@pytest.mark.parametrize("given", [{}, {"precision": "auto"}])
def test_a_test_computes_in_the_type_of_the_run(given: dict[str, Any]) -> None:
    trained = _config("pong", precision="bfloat16")
    assert trained.for_test({"mode": "test", **given}).precision == "bfloat16"
    other = trained.for_test({"mode": "test", "precision": "float32"})
    assert other.precision == "float32"


def test_a_populations_flags_cannot_be_changed() -> None:
    population = {"mode": "pbt", "population_size": 4, "allow_changes": True}
    assert "--allow_changes is for a single run" in _refusal(**population)


# Flags.


def test_flags_are_the_fields_of_the_configuration() -> None:
    assert len(set(experiment._FLAGS)) == len(experiment._FLAGS)
    assert set(experiment._FLAGS) == set(Config.__dataclass_fields__)


def test_flags_keep_the_fields_types_and_defaults() -> None:
    kinds: dict[Any, str] = {str: "string", int: "int", float: "float", bool: "bool"}
    for field in dataclasses.fields(Config):
        flag = flags.FLAGS[field.name]
        has_default = field.default is not dataclasses.MISSING
        assert flag.default == (field.default if has_default else None)
        assert flag.flag_type() in (kinds[field.type], "string enum"), field.name
        assert flag.help, field.name


def test_flags_that_choose_offer_the_configurations_choices() -> None:
    parsers = {name: flags.FLAGS[name].parser for name in experiment._FLAGS}
    offered = {
        name: tuple(parser.enum_values)
        for name, parser in parsers.items()
        if isinstance(parser, flags.EnumParser)
    }
    assert offered == {**_CHOICES, "mode": (*_CHOICES["mode"], "report")}  # Which is no run's.

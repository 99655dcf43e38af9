"""The configuration: its declarations and flags, defaults by suite, and what is refused."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from absl import flags

import experiment  # noqa: F401 - defines the flags.
from scalable_agent_popart import suites
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs.config import Config, refuse_meaningless
from scalable_agent_popart.settings import FIELDS, SETTINGS, Bounds, Use
from tests.fakes.main_program import given_flags

_HUMAN = {"starts": "human", "human_starts_dir": "starts"}
_PBT = {"mode": "pbt", "population_size": 4}
_POPART = {"use_popart": True, "popart_step_size": 1e-4}
_CLUSTER = {"learner_address": "host:1"}
_ACTOR = {**_CLUSTER, "job_name": "actor", "task": 7}
_EVALUATOR = {"job_name": "evaluator"}
# The suite `unscored` of this module, as `--level_name` finds it.
SUITE = dataclasses.replace(suites.resolve("catch5"), name="unscored", reference_scores={})


def _config(level_name: str = "catch5", /, **given: Any) -> Config:
    return Config.from_flags({"level_name": level_name, **given})


def test_flags_have_the_declared_types_defaults_and_choices() -> None:
    for field in FIELDS:
        flag, declared = flags.FLAGS[field.name], field.metadata["setting"]
        default = None if field.default is dataclasses.MISSING else field.default
        assert flag.default == ([] if default == () else default)
        assert flag.flag_type().startswith(("comma", field.type.__name__[:3]))
        assert declared.help in flag.help
        assert tuple(getattr(flag.parser, "enum_values", None) or ()) == declared.choices


def test_defaults_are_the_papers() -> None:
    """The tests of flag files have those that all experiments share."""
    expected = {
        **{"learning_rate": 6e-4, "entropy_cost": 0.01, "epsilon": 0.01, "max_grad_norm": 40.0},
        **{"decay": 0.99, "network": "deep", "reward_clipping": "abs_one"},
        **{"popart_second_moment_of": "squares", "pixel_control_discount": 0.9},
        **{"use_popart": False, "multi_head": False, "pixel_control": False},
        **{"mode": "train", "learning_rate_schedule": "linear"},
    }
    assert _config("atari57").flags.items() >= expected.items()
    population = _config("atari57", **_PBT)
    assert set(population.tuned) == {"entropy_cost", "learning_rate", "epsilon", "max_grad_norm"}
    assert (population.pbt_burn_in_frames, population.pbt_episodes) == (20_000_000, 5000)
    assert population.learning_rate_schedule == "constant"


def test_actors_are_the_fewest_equal_shares_and_frames_the_tasks_part_of_the_suites() -> None:
    for level_name, num_actors, frames, episodes in (
        ("pong", 32, 200_000_000, 200),
        ("pong,boxing,qbert", 33, 600_000_000, 200),
        ("catch5", 35, 500_000, 200),
        ("atari57", 57, 11_400_000_000, 200),
        ("dmlab30", 30, 10_000_000_000, 500),
    ):
        config = _config(level_name)
        assert (config.num_actors, config.total_environment_frames) == (num_actors, frames)
        assert config.test_num_episodes == episodes
    for level_name, num_actors in (("pong", 256), ("atari57", 285), ("catch5", 35)):
        assert _config(level_name).suite.num_actors(with_gpu=True) == num_actors


def test_given_flag_wins_over_the_suites_default_and_moves_no_other() -> None:
    given = {"unroll_length": 7, "num_actors": 80, "total_environment_frames": 1234, **_POPART}
    given |= {"use_lstm": True, "reward_clipping": "oar", "max_grad_norm": 0.0}
    config = _config("atari57")
    assert _config("atari57", **given) == dataclasses.replace(config, **given)
    assert config.with_flags(given) == dataclasses.replace(config, **given)


def test_agents_have_the_papers_names_and_a_head_for_each_task_if_they_tell_them_apart() -> None:
    for flags_set, name, num_heads in (
        ((), "IMPALA", 1),
        (("multi_head",), "MultiHead-IMPALA", 2),
        (("use_popart",), "PopArt-IMPALA", 2),
        (("use_popart", "pixel_control"), "Pixel-PopArt-IMPALA", 2),
    ):
        config = _config("pong,boxing", **dict.fromkeys(flags_set, True))
        assert (config.agent_name, config.num_heads) == (name, num_heads)


def test_only_tests_begin_at_human_starts() -> None:
    config = _config("pong", mode="test", num_action_repeats=3, height=60, width=50, **_HUMAN)
    expected = suites.EnvironmentOptions(3, 60, 50, "full", training=True)
    assert config.environment_options(training=True) == expected
    tested = dataclasses.replace(expected, training=False, human_starts_dir="starts")
    assert config.environment_options(training=False) == tested


_BOUNDED = [name for name, each in SETTINGS.items() if isinstance(each.allowed, Bounds)]


@pytest.mark.parametrize("name", _BOUNDED)
def test_a_number_is_held_to_its_bounds(name: str) -> None:
    bounds, config = SETTINGS[name].allowed, _config("atari57")
    for value in (-2, math.nan, math.inf, bounds.above, 2 * bounds.high):
        with pytest.raises(UserError, match=f"^--{name} "):
            config.with_flags({name: value})


def test_integers_may_be_written_as_everybody_does(tmp_path: Path) -> None:
    (tmp_path / "flags").write_text("--pbt_burn_in_frames=20M\n")
    words = ["--total_environment_frames=11.4B", "--num_actors=0.1k", "--seed=1e3"]
    words += ["--batch_size=3_2", "--test_num_episodes=2.5e+2", "--pbt_member=-1"]
    taken = given_flags(f"--flagfile={tmp_path / 'flags'}", *words)
    expected = {"total_environment_frames": 11_400_000_000, "num_actors": 100, "seed": 1000}
    expected |= {"batch_size": 32, "test_num_episodes": 250, "pbt_member": -1}
    assert taken == {**expected, "pbt_burn_in_frames": 20_000_000}
    assert {type(value) for value in taken.values()} == {int}


@pytest.mark.parametrize("text", ["1.5", "1e-3", "0.0005k", "1M5", "nan", "inf", "", "1e20"])
def test_what_is_no_integer_is_refused(text: str) -> None:
    with pytest.raises(flags.Error, match="--seed="):
        given_flags(f"--seed={text}")


def test_a_suite_may_have_whole_floats_for_counts() -> None:
    suite = suites.resolve("catch5")
    defaults = {**suite.defaults, "batch_size": 4e1}
    suite = dataclasses.replace(suite, total_frames=1e6, defaults=defaults)
    config = Config.from_settings({"level_name": "catch5"}, suite)
    assert json.dumps([config.total_environment_frames, config.batch_size]) == "[1000000, 40]"


def test_choice_that_does_not_exist_is_refused_with_those_that_do() -> None:
    for name, declared in SETTINGS.items():
        if declared.choices:
            expected = f"--{name} must be one of {', '.join(declared.choices)}"
            with pytest.raises(UserError, match=expected):
                _config().with_flags({name: "nonsense"})


def test_flags_that_mean_something_to_a_process_of_the_job_are_taken() -> None:
    for given in (
        {**_CLUSTER, **_POPART, "multi_head": False, "test_num_episodes": 5, **_HUMAN},
        {**_CLUSTER, "job_name": "actor", "task": 0, "log_seconds": 5.0, "record_video": True},
        {"learning_rate_schedule": "constant", "task": 0, "job_name": "learner"},
        {"mode": "test", "network": "deep", "seed": 2, "precision": "bfloat16", "num_actors": 5},
        {**_PBT, **_CLUSTER, "pbt_member": 1, "pbt_episodes": 5, "learning_rate": 1e-3},
        {**_PBT, "learning_rate_schedule": "linear"},
    ):
        assert _config("pong", **given).flags.items() >= given.items()


@pytest.mark.parametrize(
    ("level_name", "given", "padding"),
    [
        ("pong", {}, "same"),
        ("pong", {"network": "shallow"}, "valid"),
        ("pong", {"network": "shallow", "width": 19}, "same"),
        ("pong", {"network": "shallow", "height": 20}, "valid"),
        ("catch5", {}, "same"),
        ("cluttered_catch", {}, "valid"),
    ],
)
def test_the_shallow_network_is_not_padded_where_images_are_large_enough(
    level_name: str, given: dict[str, Any], padding: str
) -> None:
    assert _config(level_name, **given).padding == padding


def test_older_runs_go_on_with_the_defaults_of_their_time() -> None:
    record = _config("pong", network="shallow", use_popart=True, popart_step_size=0.01).record
    for name in ("padding", "popart_start"):
        del record["flags"][name]
    for recorded, then in {"bfloat16": "bfloat16", "auto": "float32"}.items():
        record["flags"]["precision"] = recorded
        older = Config.from_record(record)
        assert older.precision == _config("pong").resuming(older, {}).precision == then
    command = {"level_name": "pong", "network": "shallow", "use_popart": True}
    resumed = Config.from_flags(command).resuming(older, command)
    for config in (older, resumed):
        then = (config.padding, config.popart_start, config.popart_step_size)
        assert then == ("same", "fixed", 0.01)
    assert not resumed.differences(older, Use.RESUME | Use.HISTORY)
    for name, other in {"padding": "valid", "popart_start": "average"}.items():
        asked = {**command, name: other}
        changed = Config.from_flags(asked).resuming(older, asked).differences(older, Use.RESUME)
        assert changed == {name: (getattr(older, name), other)}


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ({"pixel_control_cost": 0.5, "pbt_episodes": 7}, {}),  # These mean nothing to the run.
        ({"multi_head": True}, {"multi_head": False}),  # Older versions took it with --use_popart.
        ({"popart_order": "gradient_first"}, {"popart_order": None}),
        ({"popart_order": "statistics_first"}, "has --popart_order=statistics_first, which this"),
        ({"of_later": 1, "latest": 2}, "this version does not know: latest, of_later$"),
    ],
)
def test_records_of_other_versions_are_read_if_they_mean_the_same(
    recorded: dict[str, Any], expected: dict[str, Any] | str
) -> None:
    record = _config("pong", **_POPART).record
    given = record["flags"] = record["flags"] | recorded
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            Config.from_record(record)
    else:
        read = Config.from_record(record).flags
        assert read == {name: value for name, value in (given | expected).items() if name in read}


@pytest.mark.parametrize(
    ("level_name", "given", "expected"),
    [
        ("pong", {"popart_start": "average"}, "--popart_start .*without --use_popart"),
        ("pong", {**_POPART, "pixel_control_cost": 0.1}, "--pixel_control_cost .*--pixel_control;"),
        ("pong", {"pbt_member": -1}, r"--pbt_member is for --mode=pbt\|test, not --mode=train"),
        ("pong", {**_CLUSTER, "video_policy": True}, "--video_policy .*without --record_video"),
        ("pong", {"mode": "test", "checkpoint_seconds": 6.0}, "--checkpoint_seconds .*--mode=test"),
        ("pong", {**_EVALUATOR, "report_dir": "dir"}, "--report_dir is for --mode=report"),
        ("pong", {"mode": "report", "logdir": "dir"}, "--logdir .*not --mode=report"),
        ("pong", {"mode": "report", **_EVALUATOR}, r"--job_name is for --mode=train\|pbt"),
        ("atari57", {"num_actors": 56}, "--num_actors=56 .*57 tasks .*--level_name=atari57"),
        ("atari57", {"num_actors": 28, "actor_jobs": 2}, "=28 in each of --actor_jobs=2 .*57 in"),
        ("pong", {"num_actors": 4, "actor_threads": 5}, "--actor_threads=5 .*--num_actors=4"),
        ("catch5", {"width": 6}, "--width .*5 in catch5, got 6"),
        ("catch5", {"num_action_repeats": 2}, "--num_action_repeats .*1 in catch5"),
        ("pong", {**_POPART, "popart_scale_lower_bound": 2e6}, "=2000000.0 is above .*upper"),
        ("pong", {"mode": "test", "starts": "human"}, "go together"),
        ("catch5", {"mode": "test", "starts": "human"}, "has no human starts"),
        *(
            ("pong", {"learner_address": address}, f"--learner_address={address} must be HOST:PORT")
            for address in ("host", ":1", "host:70000", "host:x", "::1:5")
        ),
        ("pong", {**_CLUSTER, "job_name": "actor"}, "needs --task"),
        ("pong", {**_ACTOR, "learner_address": "host:0"}, "port 0 is for the learner"),
        ("pong", {"gpus": 2}, "--gpus=2 is too many: a learner uses one"),
        ("pong", {**_ACTOR, "actor_jobs": 1}, "--actor_jobs=1 is for --job_name=learner"),
        ("pong", {"keys_dir": "keys"}, "--keys_dir is for a run of many"),
        ("pong", {"pixel_control": True, "height": 31}, "--pixel_control needs .*31x84"),
        ("catch5", {"padding": "valid"}, "--padding=valid .* 20x20 .* shallow one on 10x5"),
        ("pong", {"padding": "valid"}, "--padding=valid .* not for the deep one on 84x84"),
        ("pong", {"dataset_path": "dummy"}, "--dataset_path means nothing to atari57"),
        ("pong", {**_PBT, "population_size": 1}, "--mode=pbt needs --population_size"),
        ("pong", {**_PBT, "pbt_member": 4}, r"--pbt_member=4 .*\[0, 3\]"),
        ("pong", {**_PBT, **_CLUSTER}, "--learner_address.* give --pbt_member too"),
        ("pong", {"logdir": "runs/[1]"}, r"--logdir=runs/\[1\] has the character \["),
        ("pong", {"logdir": "gs://runs/1"}, "--logdir=gs://runs/1 is no directory of this machine"),
        ("stairway_to_melon", _PBT, "melon has none: add a level of dmlab30"),
        (f"{__name__}:unscored", _PBT, "unscored has none: give the suite some"),
    ],
)
def test_contradictions_and_flags_that_mean_nothing_are_refused(
    level_name: str, given: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UserError, match=expected) as error:
        _config(level_name, **given).check_playable()
    assert "\n" not in str(error.value)


def test_values_at_their_limits_are_taken() -> None:
    _config("atari57", num_actors=57)
    _config("atari57", num_actors=19, actor_jobs=3)
    _config("atari57", num_actors=1, **_CLUSTER)
    _config("atari57", num_actors=4, **_ACTOR)
    _config("pong", learner_address="[::1]:1")
    _config("atari57", num_actors=5, mode="test")
    _config("pong", num_actors=4, actor_threads=4).for_test({"num_actors": 3})
    _config("pong", **_POPART, popart_scale_lower_bound=1.0, popart_scale_upper_bound=1.0)
    assert _config("catch5", width=5, height=10, num_action_repeats=1) == _config("catch5")


def test_images_are_part_of_an_experiment_but_not_where_they_lie() -> None:
    dummy, one, two = (_config("dmlab30", dataset_path=path) for path in ("dummy", "one", "two"))
    assert one.experiment == two.experiment != dummy.experiment
    other = {"level_name": "rooms_watermaze"}  # The level shows no images.
    assert one.with_flags(other).experiment == dummy.with_flags(other).experiment
    assert dummy.for_test({}).remarks()
    with pytest.raises(UserError, match=r"dummy .* one"):
        dummy.for_test({"dataset_path": "one"})


def test_run_is_tested_on_levels_of_its_suite_and_with_its_network_alone() -> None:
    trained = _config("pong,boxing", **_POPART)
    for level_name in ("pong", "qbert", "atari57"):
        config = trained.for_test({"level_name": level_name})
        assert (config.suite.tasks, config.mode) == (_config(level_name).suite.tasks, "test")
    with pytest.raises(UserError, match=r"trained on atari57; .* catch5"):
        trained.for_test({"level_name": "catch5"})
    with pytest.raises(UserError, match=r"--network=deep.* shallow"):
        trained.for_test({"level_name": "pong", "network": "shallow"})


def test_a_test_has_the_runs_settings_but_is_asked_for_its_own() -> None:
    trained = _config("pong", seed=5, precision="bfloat16").with_flags({"test_num_episodes": 3})
    again = trained.for_test(_HUMAN)
    assert (again.test_num_episodes, again.starts, again.seed) == (200, "human", 5)
    assert again.for_test({}).starts == "noop"
    filmed = trained.with_flags({"record_video": True, "video_policy": True})
    assert not filmed.for_test({"record_video": True}).video_policy
    assert again.precision == "bfloat16"
    assert trained.for_test({"precision": "float32"}).precision == "float32"
    assert trained.for_test({"reward_clipping": "none"}).reward_clipping == "none"
    with pytest.raises(UserError, match=r"--log_seconds .*--mode=train"):
        trained.for_test({"log_seconds": 5.0})


def test_an_evaluator_takes_the_flags_of_its_learner() -> None:
    trained = _config("pong", **_CLUSTER, **_POPART)
    given = {**_EVALUATOR, "popart_step_size": 1e-4, "log_seconds": 9.0, "test_num_episodes": 7}
    refuse_meaningless(given)  # The run, which uses PopArt, is not known yet.
    config = trained.for_test(given)
    assert (config.mode, config.job_name, config.learner_address) == ("test", "learner", "")
    assert (config.test_num_episodes, config.log_seconds) == (7, 9.0)
    with pytest.raises(UserError, match=r"--pixel_control_cost .*--pixel_control"):
        trained.for_test({**given, "pixel_control_cost": 1.0})

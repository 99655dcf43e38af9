"""Names that `--level_name` may give, and the suites they stand for."""

import dataclasses
import functools
import importlib
import importlib.util
import json
import re
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from scalable_agent_popart import suites
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.json_lines import DAMAGE
from scalable_agent_popart.suites import record
from scalable_agent_popart.suites.gymnasium_suite import check_environment, map_actions, pad_images
from tests.fakes.play import play_pool

_OWN_SUITE = """
import dataclasses
import os
import gymnasium
import numpy as np
from scalable_agent_popart.scores import ReferenceScore
from scalable_agent_popart.suites.gymnasium_suite import make_suite

class Counter(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (12, 8, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2, dtype=np.int32)
    def reset(self, *, seed=None, options=None):
        self.count = 0
        return self.draw(), {}
    def step(self, action):
        self.count += 1
        return self.draw(), action, False, self.count == 3, {}
    def draw(self):
        return np.full((12, 8, 3), self.count, np.uint8)

def make(name="own", tasks=("left", "right"), shape=(12, 8, 3), num_actions=2, **given):
    makers = {task: HELD_OUT if task == "left_test" else Counter for task in tasks}
    return make_suite(name, makers, shape, num_actions, 1000, **given)

class Other(Counter):
    action_space = gymnasium.spaces.Discrete(3)

HELD_OUT = Counter
TESTED = {"tasks": ["left", "left_test"], "test_versions": {"left": "left_test"}}

def both(scores):
    return dict.fromkeys(("left", "right"), ReferenceScore(*scores))
"""


def _refusal(level_name: str) -> str:
    with pytest.raises(UserError) as error:
        suites.resolve(level_name)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "suite_name", "num_tasks"),
    [
        (" pong , boxing,crazy_climber ", "atari57", 3),
        ("rooms_watermaze,seekavoid_arena_01", "dmlab30", 2),  # Without the module.
    ],
)
def test_names_stand_for_suites_and_tasks(name: str, suite_name: str, num_tasks: int) -> None:
    suite = suites.resolve(name)
    assert (suite.name, len(suite.tasks)) == (suite_name, num_tasks)
    assert suites.resolve(suite.level_name) == suite


@pytest.mark.parametrize(
    ("level_name", "message"),
    [
        ("pong,boxxing", r"'boxxing'; did you mean boxing"),
        ("zzzzzz", "'zzzzzz'; suites: atari57, catch5, cluttered_catch, dmlab30$"),
        ("PongNoFrameskip-v4", r"did you mean pong\?$"),
        ("ALE/UpNDown-v5", r"did you mean up_n_down\?$"),
        ("CartPole-v1", "dmlab30$"),
        ("lt_x", "dmlab30; DeepMind Lab: the module deepmind_lab is missing"),
        ("pong,boxing, pong", "names pong more than once"),
        ("pong,catch_1", r"pong \(atari57\), catch_1 \(catch5\)"),
    ],
)
def test_wrong_names_are_refused_with_what_may_be_meant(
    level_name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)  # It may be installed.
    assert re.search(message, _refusal(level_name))


WriteModule = Callable[[str], str]


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteModule:
    """Writes a module of another name each time and returns the name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(source: str) -> str:
        name = f"own_suite_{uuid.uuid4().hex}"
        (tmp_path / f"{name}.py").write_text(f"{_OWN_SUITE}\n{source}")
        importlib.invalidate_caches()
        return name

    return write


def test_a_module_gives_a_suite_whose_name_resolves_again(write_module: WriteModule) -> None:
    module = write_module("SUITE = make(defaults={'unroll_length': 7})")
    for names, tasks in (("own", ("left", "right")), ("right, left", ("right", "left"))):
        config = Config.from_flags({"level_name": f"{module}:{names}"})
        config.check_playable()
        assert config.suite.tasks == tasks
        assert suites.resolve(config.level_name) == config.suite
    assert (config.height, config.width, config.num_actions, config.unroll_length) == (12, 8, 2, 7)
    assert (config.suite.normalised, config.suite.unit) == (False, "")


def test_environments_that_change_the_current_directory_move_no_run(
    write_module: WriteModule, tmp_path: Path
) -> None:
    module = write_module("Counter.__init__ = lambda self: os.chdir('/')\nSUITE = make()")
    flags = {"level_name": f"{module}:own", "logdir": "run"}
    with pytest.raises(UserError, match=f"change the current .*: give --logdir={tmp_path}/run$"):
        Config.from_flags(flags).check_playable()
    Config.from_flags({**flags, "logdir": f"{tmp_path}/run"}).check_playable()


def test_a_suite_may_use_popart_by_default(write_module: WriteModule) -> None:
    module = write_module("SUITE = make(defaults={'use_popart': True})")
    flags = {"level_name": f"{module}:own"}
    assert Config.from_flags({**flags, "popart_step_size": 0.1}).use_popart
    assert not Config.from_flags({**flags, "multi_head": True, "use_popart": False}).use_popart
    with pytest.raises(UserError, match=r"--multi_head .*--use_popart"):
        Config.from_flags({**flags, "multi_head": True})
    with pytest.raises(UserError, match=r"--popart_step_size .*--use_popart"):
        Config.from_flags({**flags, "popart_step_size": 0.1, "use_popart": False})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise OSError(3)", "OSError: 3"),
        ("SUITE = make", "must be a .*Suite, not function"),
        ("SUITE = make('catch5')", "must not be named catch5"),
        ("SUITE = make('a/b')", "name of letters"),
        ("SUITE = make(stacks_frames=True)", "images of one channel to stack them, not of 3"),
        ("SUITE = make(headline='mode')", "headline of mean, .*not mode"),
        ("SUITE = make(defaults={'learning_rat': 1})", "default of learning_rat, which is no flag"),
        ("SUITE = make(defaults={'batch_size': '8'})", "--batch_size cannot be '8', .* no int"),
        ("SUITE = make(tasks=('a,b',))", "without commas"),
        ("SUITE = dataclasses.replace(make(), tasks={'left', 'right'})", "are a set; give a tuple"),
        ("SUITE = dataclasses.replace(make(), tasks=('left', 'left'))", "each of them once"),
        ("SUITE = dataclasses.replace(make(), tasks=('left',))", "scores of all its tasks, or of"),
        ("SUITE = dataclasses.replace(make(), test_versions={'left': 1})", "of printable text"),
        ("SUITE = dataclasses.replace(make(), action_sets={})", "must have a set of actions"),
        ("SUITE = dataclasses.replace(make(), defaults={})", "must have defaults of height and w"),
        ("SUITE = make(reference_scores=both((1, 1)))", "different finite .* not 1 and 1 for"),
        ("SUITE = make(reference_scores=dict.fromkeys(('left', 'right'), 1))", "ReferenceScore of"),
        ("SUITE = make(action_names=('a',))", "action_names has 1 of 2 actions' names"),
        ("SUITE = make(num_actions=3)", "has images .* 2 actions, but .* and 3 actions"),
        ("SUITE = make(num_actions=3, processes=True)", "left has .* 2 actions, but .* 3 actions"),
        ("Counter = lambda: 0\nSUITE = make(processes=True)", "tasks must pickle .*lambda"),
        ("Counter.close = lambda _: os.abort()\nSUITE = make(processes=True)", "left .*signal 6"),
        ("SUITE = make(requires={'gone.sub': 'get it'})", "needs the module gone.sub: get it"),
        ("HELD_OUT = Other\nSUITE = make(**TESTED)", "left_test has .* 3 actions, but its suite"),
        ("SUITE = make(**TESTED | {'tasks': ['left']})", "has left_test, which tasks lacks"),
        ("SUITE = make(test_versions={'lefty': 'left'})", "has lefty, which tasks lacks"),
    ],
)
def test_modules_without_a_usable_suite_are_refused_with_the_cause(
    write_module: WriteModule, source: str, message: str
) -> None:
    module = write_module(source)
    with pytest.raises(UserError, match=message):
        Config.from_flags({"level_name": f"{module}:own"}).check_playable()


def test_a_child_of_this_checkout_checks_many_tasks_that_leave_threads_behind(
    write_module: WriteModule, tmp_path: Path
) -> None:
    (tmp_path / "scalable_agent_popart.py").write_text("raise SystemExit(3)")
    module = write_module(
        "import threading\n"
        "Counter.close = lambda self: threading.Thread(target=threading.Event().wait).start()\n"
        "SUITE = make(tasks=map(str, range(400)), processes=True)"
    )
    Config.from_flags({"level_name": f"{module}:own"}).check_playable()


class Game(gymnasium.Env):
    """Shows an image of given spaces, and ends its episodes every third step."""

    def __init__(self, shape: tuple[int, ...] = (4, 6, 3), dtype: Any = np.uint8, **given: Any):
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, dtype)
        self.action_space = given.get("actions", gymnasium.spaces.Discrete(2))
        self.given, self.taken, self.count = given, [], 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.ones(self.observation_space.shape, self.observation_space.dtype), {}

    def step(self, action: int) -> Any:
        self.taken.append(action)
        self.count += 1
        if self.count == self.given.get("raises_at"):
            raise ValueError("done")
        image, _ = self.reset()
        reward = self.given.get("reward", 1) if self.count == 7 else 1
        return image, reward, False, self.count % 3 == 0, {}


_FORTY = gymnasium.spaces.Box(-np.arange(40.0, dtype=np.float32), np.float32(40.0))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shape": (4, 6)}, r"must be spaces.Box\(0, 255, \(height, .*not Box"),
        ({"dtype": np.float32}, "observation_space must be"),
        ({"reward": np.inf}, "at step 7 .*: a reward must be a finite float32, and is inf"),
        ({"raises_at": 5}, "at step 5 the environment .* raised ValueError: done"),
        ({"shape": "wrong"}, "cannot be made"),
        ({"actions": _FORTY}, r"action_space must be .* \(40,\), float32"),
        ({"actions": lambda agent: 2}, "is not Gymnasium's: it has .*function"),
    ],
)
def test_environments_can_be_checked_before_they_are_trained_on(
    given: dict[str, Any], message: str
) -> None:
    assert check_environment(Game) == ((4, 6, 3), 2)
    with pytest.raises(UserError, match=message) as error:
        check_environment(lambda: Game(**given))
    assert "\n" not in str(error.value)


def test_environments_of_other_sizes_and_actions_can_be_made_alike() -> None:
    game = Game((2, 3, 3), actions=gymnasium.spaces.Discrete(3))
    make = functools.partial(map_actions, pad_images(game, 5, 6), (2, 0, 0, 1))
    assert check_environment(make) == ((5, 6, 3), 4)
    image, _ = make().reset()
    np.testing.assert_array_equal(np.argwhere(image[..., 0])[[0, -1]], [[1, 1], [2, 3]])
    game.taken.clear()
    for action in range(4):
        make().step(action)
    assert game.taken == [2, 0, 0, 1]
    speeds = [np.array([0.5], np.float32)]
    wheel = Game(actions=gymnasium.spaces.Box(-1, 1, (1,)))
    map_actions(wheel, speeds).step(0)
    wheel.taken[0] *= 2  # An environment may scale it.
    assert speeds[0] == 0.5, "the next step takes the same action"
    with pytest.raises(ValueError, match="of 2x3 do not fit into 2x2"):
        pad_images(game, 2, 2)
    with pytest.raises(ValueError, match=r"\(0, 3\) are actions"):
        map_actions(game, (0, 3))


def test_gymnasium_tasks_may_have_versions_that_are_only_tested(write_module: WriteModule) -> None:
    suite = suites.resolve(f"{write_module('SUITE = make(**TESTED)')}:own")
    assert suite.tasks == ("left",)
    options = Config.from_flags({"level_name": suite.level_name}).environment_options(False)
    pool = suite.select(["left_test", "left"]).make_environments([0, 1], [1, 2], options)
    assert len(pool.task_ids) == 2


@pytest.mark.parametrize("processes", [False, True])
def test_gymnasium_environments_restart_in_the_step_that_ends_an_episode(
    write_module: WriteModule, processes: bool
) -> None:
    module = write_module(f"SUITE = make(processes={processes}, shape=[12, 8, 3])")
    suite = suites.resolve(f"{module}:right")
    options = Config.from_flags({"level_name": suite.level_name}).environment_options(True)
    pool = suite.make_environments([0, 0], [1, 2], options)
    _, output = play_pool(pool, actions=[1] * 4, lengths=[5, 5])
    assert output.observation.shape == (5, 12, 8, 3)
    assert output.observation[:, 0, 0, 0].tolist() == [0, 1, 2, 0, 1]
    assert output.reward.tolist() == [0, 1, 1, 1, 1]
    assert output.done.tolist() == [True, False, False, True, False]


@pytest.mark.parametrize(
    ("given", "name", "unit"),
    [
        ("", "return", ""),
        ("reference_scores=both((0, 100)), action_names=('a', 'b')", "human-normalised score", "%"),
        ("reference_scores=both((0, 1)), full_score='the best'", "normalised score", "%"),
    ],
)
def test_a_record_is_read_without_the_module_that_it_names(
    write_module: WriteModule, given: str, name: str, unit: str
) -> None:
    module = write_module(f"SUITE = make({given})")
    config = Config.from_flags({"level_name": f"{module}:right", "use_popart": True})
    made = json.loads(json.dumps(config.record))
    (Path.cwd() / f"{module}.py").write_text("raise AssertionError('imported')")
    del sys.modules[module]
    read = Config.from_record(made)
    assert (read, read.tuned, read.remarks()) == (config, config.tuned, {})
    assert (read.suite.tasks, read.suite.whole) == (("right",), False)
    assert read.suite.reference_scores == config.suite.reference_scores
    names = read.suite.names_of_actions(config.action_set)
    assert [*names] == ["a", "b"] * ("action_names" in given)
    assert (read.suite.score_name, read.suite.unit) == (name, unit)
    with pytest.raises(UserError, match=f"{module}:right.* --level_name"):
        read.for_test({})
    del made["suite"]  # Older versions wrote none, and are read of known tasks only.
    with pytest.raises(ValueError, match="expected 1, got 0"):
        Config.from_record(made)


def _described() -> dict[str, Any]:
    suite = dataclasses.replace(suites.resolve("pong"), name="own", module="own")
    config = Config.from_flags({"level_name": "pong"})
    return json.loads(json.dumps(record.describe(suite, config.environment_options(True))))


@pytest.mark.parametrize(
    "damage",
    [
        {"tasks": ["<b>", "a\nb"]},
        {"suite": {"name": "own"}},
        {"suite": {**_described(), "name": "../own"}},
    ],
)
def test_records_of_no_suite_are_refused(damage: dict[str, Any]) -> None:
    good = {**Config.from_flags({"level_name": "pong"}).record, "suite": _described()}
    assert Config.from_record(good).suite.tasks == ("pong",)
    with pytest.raises(DAMAGE):
        Config.from_record({**good, **damage})


def test_a_record_cannot_have_a_level_loaded_by_describing_it_as_known() -> None:
    made = {**Config.from_flags({"level_name": "pong"}).record, "suite": _described()}
    made["suite"] |= {"module": "", "every_task": ["/some/level"], "reference_scores": {}}
    made["suite"]["human_starts_scores"] = {}
    made |= {"tasks": ["/some/level"]}
    with pytest.raises(UserError, match="--level_name"):
        Config.from_record(made).for_test({})


def test_installed_packages_register_suites(
    write_module: WriteModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = write_module("SUITE = make()")
    entry_points = tmp_path / "own-1.0.dist-info" / "entry_points.txt"
    entry_points.parent.mkdir()
    group = "[scalable_agent_popart.suites]"
    entry_points.write_text(f"{group}\nown = {module}:SUITE\nbroken = own_nowhere:SUITE\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert suites.resolve("own").level_name == "own"
    assert suites.resolve("left").name == "own", "whatever else is broken"
    assert re.search("mean pong.*; the suite broken.* cannot be loaded", _refusal("pongg"))
    assert "No module named 'own_nowhere'" in _refusal("broken")
    assert suites.resolve("lt_chasm").name == "dmlab30", "whatever else is broken"

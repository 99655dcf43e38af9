"""A member's comparisons: what is copied, when, and what a death in the middle leaves."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_learner
import tensorflow as tf

from scalable_agent_popart import construction, member, pbt
from scalable_agent_popart.checkpoints import Checkpoints
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.member import Member
from scalable_agent_popart.population_directory import MemberDirectory, PopulationDirectory

_SIZE = 3
_BURN_IN = 1000
_EPISODES = 10
_FLAGS = {
    "mode": "pbt",
    "level_name": "catch5",
    "use_popart": True,
    "population_size": _SIZE,
    "pbt_burn_in_frames": _BURN_IN,
    "pbt_episodes": _EPISODES,
}


class Run:
    """A member's run with made-up weights and episodes."""

    def __init__(self, root: Path, number: int, takes_turns: bool = False, begin: bool = True):
        population = PopulationDirectory(str(root))
        config = Config.from_flags({**_FLAGS, "logdir": str(root)})
        start = {"learning_rate": 0.001 * (number + 1), "entropy_cost": 0.01, "epsilon": 0.1}
        self.config = population.member_config(config, number, start)
        self.directory = population.member(number)
        self.directory.path.mkdir(parents=True, exist_ok=True)
        spec = construction.make_rollout_spec(self.config)
        self.learner = construction.make_learner(self.config, spec)
        self.member = Member(self.config, population, self.learner, takes_turns)
        self.checkpoints = Checkpoints(
            self.directory.checkpoints, learner=self.learner, **self.member.tracked
        )
        self.resumed = self.checkpoints.restore()
        if begin:
            self.member.begin(self.checkpoints.save)

    def learn(self, frames: int, seed: int) -> "Run":
        """Moves everything that learning moves."""
        rng = np.random.default_rng(seed)
        for variable in self._copied():
            variable.assign(rng.normal(size=variable.shape))
        self.learner.frames.assign(frames)
        self.learner.num_updates.assign(frames // 10)
        return self

    def play(self, percent: float, episodes: int = _EPISODES) -> "Run":
        """Finishes games with this human-normalised score."""
        tasks = self.config.suite.tasks
        for i in range(episodes):
            low, high = self.config.suite.reference_scores[tasks[i % len(tasks)]]
            raw = low + (high - low) * percent / 100
            self.member.hear(tasks[i % len(tasks)], raw, int(self.learner.frames))
        return self

    def tune(self) -> bool:
        return self.member.tune(self.checkpoints.save)

    def weights(self) -> list[np.ndarray]:
        return small_learner.snapshot(self._copied())

    def _copied(self) -> list[tf.Variable]:
        """All variables of the learner but the run's own progress."""
        own = {self.learner.frames.ref(), self.learner.num_updates.ref()}
        return [variable for variable in self.learner.variables if variable.ref() not in own]

    def progress(self) -> tuple[int, int]:
        return int(self.learner.frames), int(self.learner.num_updates)

    def tuned(self) -> dict[str, float]:
        values = self.learner.hyperparameters.values()
        return {name: values[name] for name in self.config.tuned}


def _same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


def _publish(root: Path, number: int, percent: float, frames: int = 2000, seed: int = 7) -> Run:
    """A member that has published, and has gone on learning since."""
    run = Run(root, number, takes_turns=True).learn(frames, seed).play(percent)
    assert not run.tune()
    return run


def _explored(values: dict[str, float], base: dict[str, float]) -> bool:
    """Whether values are what `explore` may make of others."""
    ratios = [values[name] / base[name] for name in base]
    return all(np.isclose(r, (1.0, 1.2, 1 / 1.2), rtol=1e-6).any() for r in ratios)


def test_is_due_after_burn_in_with_enough_episodes_of_every_task(tmp_path: Path) -> None:
    run = Run(tmp_path, 0).learn(_BURN_IN - 1, seed=1).play(50.0, 100)
    assert not run.member.due()
    run.learner.frames.assign(_BURN_IN)
    assert run.member.due()
    run = Run(tmp_path, 1).learn(_BURN_IN, seed=1).play(50.0, _EPISODES - 1)
    assert not run.member.due()
    run.play(50.0, 1)
    assert run.member.due()
    run = Run(tmp_path, 2).learn(_BURN_IN, seed=1)
    for _ in range(100):
        run.member.hear("catch_1", 1.0, _BURN_IN)
    assert not run.member.due()


def test_much_fitter_member_is_copied_with_all_that_it_learned(tmp_path: Path) -> None:
    source = _publish(tmp_path, 1, 60.0)
    published, hyperparameters = source.weights(), source.tuned()
    source.learn(3000, seed=8)  # What it did since is nobody's business.
    source.learner.hyperparameters.assign({"learning_rate": 9.0})
    run = Run(tmp_path, 0).learn(1500, seed=3).play(54.9)
    assert run.tune()
    assert _same(run.weights(), published)
    assert run.progress() == (1500, 150)
    assert _explored(run.tuned(), hyperparameters)
    event = run.directory.read_lineage()[-1]
    assert (event.partner, event.copied, event.source_frames) == (1, True, 2000)
    assert event.fitness == pytest.approx(54.9)
    assert event.partner_fitness == pytest.approx(60.0)
    assert event.hyperparameters == pytest.approx(run.tuned())


@pytest.mark.parametrize("percent", [55.1, 60.0, 90.0])
def test_member_that_is_as_fit_keeps_its_weights_and_explores(
    tmp_path: Path, percent: float
) -> None:
    _publish(tmp_path, 1, 60.0)
    run = Run(tmp_path, 0).learn(1500, seed=3).play(percent)
    before, hyperparameters = run.weights(), run.tuned()
    assert run.tune()
    assert _same(run.weights(), before)
    assert _explored(run.tuned(), hyperparameters)
    event = run.directory.read_lineage()[-1]
    assert (event.partner, event.copied, event.source_frames) == (1, False, None)


def test_run_ends_with_what_it_published(tmp_path: Path) -> None:
    _publish(tmp_path, 1, 90.0)
    run = Run(tmp_path, 0)
    run.learn(run.config.total_environment_frames, seed=3).play(10.0)
    before, hyperparameters = run.weights(), run.tuned()
    assert not run.tune()
    assert _same(run.weights(), before)
    assert run.tuned() == hyperparameters
    assert len(run.directory.read_lineage()) == 1
    published = run.directory.published()
    assert published is not None
    assert published.fitness == pytest.approx(10.0)


def test_copy_is_of_what_earned_the_fitness_and_is_resumed_from(tmp_path: Path) -> None:
    published = _publish(tmp_path, 1, 90.0).weights()
    run = Run(tmp_path, 0).learn(1500, seed=3).play(10.0)
    run.tune()
    again = Run(tmp_path, 0)
    assert again.resumed
    assert _same(again.weights(), published)
    assert again.tuned() == run.tuned()
    assert again.progress() == run.progress()
    assert len(again.directory.read_lineage()) == 2


def test_whoever_has_published_may_be_the_partner_and_never_oneself(tmp_path: Path) -> None:
    for number in (0, 2):
        _publish(tmp_path, number, 50.0)
    run = Run(tmp_path, 1).learn(1500, seed=3)
    for _ in range(25):
        run.learner.frames.assign_add(100)
        run.play(50.0).tune()
    partners = [event.partner for event in run.directory.read_lineage()[1:]]
    assert set(partners) == {0, 2}
    assert min(partners.count(number) for number in (0, 2)) >= 4


def test_alone_a_member_explores(tmp_path: Path) -> None:
    run = Run(tmp_path, 1).learn(1500, seed=3).play(50.0)
    before, hyperparameters = run.weights(), run.tuned()
    run.tune()
    assert _same(run.weights(), before)
    assert _explored(run.tuned(), hyperparameters)
    assert run.directory.read_lineage()[-1].partner is None


def test_fitness_is_of_the_episodes_since_the_last_comparison(tmp_path: Path) -> None:
    run = Run(tmp_path, 0).learn(1500, seed=3).play(10.0, 40)
    run.tune()
    run.learner.frames.assign(2500)
    for _ in range(7):  # Of before the comparison, as a resumed run hears them again.
        run.member.hear("catch_1", -1.0, 1500)
    assert not run.member.due()
    run.play(80.0).tune()
    published = run.directory.published()
    assert published is not None
    assert published.fitness == pytest.approx(80.0)
    assert (published.comparison, published.episodes, published.frames) == (2, _EPISODES, 2500)


def test_taking_turns_the_comparison_is_made_when_the_next_turn_begins(tmp_path: Path) -> None:
    run = Run(tmp_path, 0, takes_turns=True).learn(1500, seed=3).play(10.0)
    assert not run.tune()
    assert len(run.directory.read_lineage()) == 1
    published = _publish(tmp_path, 1, 90.0).weights()
    again = Run(tmp_path, 0, takes_turns=True)
    assert again.directory.read_lineage()[-1].copied
    assert _same(again.weights(), published)
    assert not again.member.due()


class _DeathError(Exception):
    pass


def _die(*arguments: Any, **named: Any) -> None:
    raise _DeathError


def _dying(monkeypatch: pytest.MonkeyPatch, run: Run, moment: str) -> Callable[[], str]:
    """The run's `save`; somewhere in a comparison, the process dies."""
    saved = []

    def save() -> str:
        saved.append(True)
        if f"save {len(saved)}" == moment:
            raise _DeathError
        return run.checkpoints.save()

    targets = {
        "link": ("os.link", _die),
        "fitness": ("scalable_agent_popart.population_directory.write_atomically", _die),
        "copy": ("shutil.copyfile", _die),
        "load": ("scalable_agent_popart.checkpoints.load", _die),
        "explore": ("scalable_agent_popart.pbt.explore", _die),
    }
    if moment in targets:
        monkeypatch.setattr(*targets[moment])
    return save


@pytest.mark.parametrize(
    "moment", ["save 1", "link", "fitness", "copy", "load", "explore", "save 2"]
)
def test_member_that_dies_in_a_comparison_returns_whole_and_makes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    root = tmp_path / "dies"
    source = _publish(root, 1, 90.0)
    _publish(root, 2, 91.0, seed=9)
    first = Run(root, 0).learn(1500, seed=3)
    first.checkpoints.save()
    shutil.copytree(root, tmp_path / "lives")

    undisturbed = Run(tmp_path / "lives", 0).play(10.0)
    undisturbed.tune()
    expected = undisturbed.directory.read_lineage()
    assert expected[-1].copied

    run = Run(root, 0).play(10.0)
    with monkeypatch.context() as patch, pytest.raises(_DeathError):
        run.member.tune(_dying(patch, run, moment))
    # Others see what was there before, or all that is new.
    known = run.directory.published()
    for path in () if known is None else (known.checkpoint,):
        assert len(list(Path(path).parent.glob(f"{Path(path).name}.*"))) == 2
    again = Run(root, 0, begin=False)
    again.play(10.0)  # What its log says of the time since the last comparison.
    again.member.begin(again.checkpoints.save)
    assert again.directory.read_lineage() == expected
    assert _same(again.weights(), undisturbed.weights())
    assert again.tuned() == undisturbed.tuned()
    assert not (again.directory.path / "incoming").exists()
    assert source.directory.published() is not None


def test_partner_that_publishes_meanwhile_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _publish(tmp_path, 1, 90.0)
    run = Run(tmp_path, 0).learn(1500, seed=3).play(10.0)
    fetch, asked = MemberDirectory.fetch, []

    def gone_at_first(self: MemberDirectory, published: Any) -> Any:
        asked.append(published.frames)
        if len(asked) == 1:
            again = Run(tmp_path, 1, takes_turns=True).learn(4000, seed=20).play(95.0)
            again.tune()
            raise FileNotFoundError
        return fetch(self, published)

    monkeypatch.setattr(MemberDirectory, "fetch", gone_at_first)
    run.tune()
    assert asked == [2000, 4000]
    assert run.directory.read_lineage()[-1].source_frames == 4000
    assert not _same(run.weights(), source.weights())


def test_damaged_checkpoint_of_another_is_named_and_nothing_is_saved(tmp_path: Path) -> None:
    source = _publish(tmp_path, 1, 90.0)
    (data,) = (source.directory.path / "snapshots").glob("*.data-*")
    data.write_bytes(data.read_bytes()[:100])
    run = Run(tmp_path, 0).learn(1500, seed=3).play(10.0)
    mine = run.weights()
    with pytest.raises(UserError, match="damaged"):
        run.tune()
    assert _same(Run(tmp_path, 0, begin=False).weights(), mine)


def test_diverged_run_goes_on_from_anybody(tmp_path: Path) -> None:
    published = _publish(tmp_path, 1, -50.0).weights()
    run = Run(tmp_path, 0).learn(1500, seed=3)
    run.checkpoints.save()
    run.directory.divergence.touch()
    again = Run(tmp_path, 0)
    assert _same(again.weights(), published)
    event = again.directory.read_lineage()[-1]
    assert (event.fitness, event.copied, event.started_over) == (None, True, False)
    assert not again.directory.divergence.exists()
    assert again.progress() == (1500, 150)


def test_diverged_run_that_has_nobody_to_copy_starts_over(tmp_path: Path) -> None:
    run = Run(tmp_path, 0).learn(1500, seed=3)
    run.checkpoints.save()
    run.directory.divergence.touch()
    again = Run(tmp_path, 0)
    pairs = zip(run.weights(), again.weights(), strict=True)
    assert not any((one == other).any() for one, other in pairs if one.size > 1)
    assert again.progress() == (1500, 150)
    assert all(np.isfinite(weights).all() for weights in again.weights())
    event = again.directory.read_lineage()[-1]
    assert (event.fitness, event.copied, event.started_over) == (None, False, True)
    drawn = pbt.draw(again.config.suite.search_space, [again.config.seed, 1, 1])
    assert again.tuned() == pytest.approx(drawn)


def test_most_looks_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _publish(tmp_path, 1, 90.0)
    run = Run(tmp_path, 0).learn(1500, seed=3).play(10.0)
    mine = run.weights()

    def gone(self: MemberDirectory, published: Any) -> Any:
        raise FileNotFoundError

    monkeypatch.setattr(MemberDirectory, "fetch", gone)
    assert run.tune()
    assert _same(run.weights(), mine)
    assert member._MOST_LOOKS < 10
    event = run.directory.read_lineage()[-1]
    assert not event.copied

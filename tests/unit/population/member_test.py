"""A member's comparisons: what is copied, when, and what a death in the middle leaves."""

import itertools
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.errors import InUseError
from scalable_agent_popart.population import member, rules
from scalable_agent_popart.population.directory import Event, PopulationDirectory
from scalable_agent_popart.population.member import Member
from scalable_agent_popart.runs.checkpoints import Checkpoints
from scalable_agent_popart.runs.config import Config

_BURN_IN, _EPISODES = 1000, 10
_FLAGS = {
    "mode": "pbt",
    "level_name": "catch5",
    "use_popart": True,
    "population_size": 3,
    "pbt_burn_in_frames": _BURN_IN,
    "pbt_episodes": _EPISODES,
}


class _Run:
    """A member's run with made-up weights and episodes, resumed if it has a checkpoint."""

    def __init__(self, root: Path, number: int, begin: bool = True, **how: bool):
        population = PopulationDirectory(str(root))
        config = Config.from_flags({**_FLAGS, "logdir": str(root)})
        start = {"learning_rate": 0.001 * (number + 1), "entropy_cost": 0.01, "epsilon": 0.1}
        self.config = population.member_config(config, number, start)
        self.directory = population.member(number)
        self.directory.path.mkdir(parents=True, exist_ok=True)
        spec = factory.make_rollout_spec(self.config)
        self.learner = factory.make_learner(self.config, spec)
        self.member = Member(self.config, population, **how)
        parts = self.member.attach(self.learner)
        self.checkpoints = Checkpoints(self.directory.checkpoints, learner=self.learner, **parts)
        self.checkpoints.restore()
        if begin:
            self.member.begin(self.checkpoints.save)

    def learn(self, frames: int, seed: int = 3) -> "_Run":
        """Changes everything that learning changes."""
        rng = np.random.default_rng(seed)
        for variable in self._learned():
            variable.assign(rng.normal(size=variable.shape))
        self.learner.frames.assign(frames)
        self.learner.num_updates.assign(frames // 10)
        return self

    def play(self, percent: float, episodes: int = _EPISODES) -> "_Run":
        """Finishes games with this human-normalised score."""
        tasks = self.config.suite.tasks
        for i in range(episodes):
            low, high = self.config.suite.reference_scores[tasks[i % len(tasks)]]
            raw = low + (high - low) * percent / 100
            self.member.on_episode(tasks[i % len(tasks)], raw, int(self.learner.frames))
        return self

    def tune(self) -> bool:
        return self.member.tune(self.checkpoints.save)

    def weights(self) -> np.ndarray:
        return np.concatenate([variable.numpy().ravel() for variable in self._learned()])

    def _learned(self) -> list[tf.Variable]:
        """Returns the learner's variables that members copy."""
        progress = {self.learner.frames.ref(), self.learner.num_updates.ref()}
        return [variable for variable in self.learner.variables if variable.ref() not in progress]

    def progress(self) -> tuple[int, int]:
        return int(self.learner.frames), int(self.learner.num_updates)

    def tuned(self) -> dict[str, float]:
        values = self.learner.hyperparameters.values()
        return {name: values[name] for name in self.config.tuned}

    def event(self) -> Event:
        """Returns the last one."""
        return self.directory.read_lineage()[-1]


def _publish(root: Path, number: int, percent: float, seed: int = 7) -> _Run:
    """Makes a member that has published at 2,000 frames."""
    run = _Run(root, number, takes_turns=True).learn(2000, seed).play(percent)
    assert not run.tune()
    return run


def _explored(values: dict[str, float], base: dict[str, float]) -> bool:
    """Returns whether `explore` may turn the base into these values."""
    ratios = [values[name] / base[name] for name in base]
    return all(np.isclose(r, (1.0, 1.2, 1 / 1.2), rtol=1e-6).any() for r in ratios)


def test_a_comparison_is_due_after_the_burn_in_with_enough_episodes_of_every_task(
    tmp_path: Path,
) -> None:
    run = _Run(tmp_path, 0).learn(_BURN_IN).play(90.0, 100)
    run.learner.frames.assign(_BURN_IN + 1)
    run.play(10.0, _EPISODES - 1)
    assert not run.member.due()
    run.play(10.0, 1)
    assert run.member.due()
    run.tune()
    published = run.directory.published()
    assert (published.fitness, published.episodes) == (pytest.approx(10.0), _EPISODES)
    for _ in range(100):
        run.member.on_episode("catch_1", 1.0, _BURN_IN + 2)
    assert not run.member.due()


def test_fitness_is_computed_from_the_episodes_since_the_last_comparison(tmp_path: Path) -> None:
    run = _Run(tmp_path, 0).learn(1500).play(10.0, 40)
    run.tune()
    for again in (run, _Run(tmp_path, 0)):
        again.play(90.0, 100)  # A resumed run is told of all its episodes again.
        del again.member._compared_at  # Reading the variable for each would take long.
        again.play(90.0, 100)
        assert not again.member.due()
        again.learner.frames.assign(2500)
        assert again.play(80.0).member.due()
    again = _Run(tmp_path, 0)
    again.learner.frames.assign(2500)
    again.play(80.0).tune()
    published = again.directory.published()
    assert published.fitness == pytest.approx(80.0)
    assert (published.comparison, published.episodes, published.frames) == (2, _EPISODES, 2500)


def test_a_much_fitter_member_is_copied_with_all_that_it_learned(tmp_path: Path) -> None:
    source = _publish(tmp_path, 1, 60.0)
    weights, hyperparameters = source.weights(), source.tuned()
    source.learn(3000, seed=8)  # It has not published these weights.
    source.learner.hyperparameters.assign({"learning_rate": 9.0})
    run = _Run(tmp_path, 0).learn(1500).play(54.9)
    assert run.tune()
    for copier in (run, _Run(tmp_path, 0)):  # Also once it is resumed.
        assert np.array_equal(copier.weights(), weights)
        assert copier.progress() == (1500, 151)  # Actors must fetch new weights.
        assert _explored(copier.tuned(), hyperparameters)
        assert copier.tuned() == run.tuned()
        assert len(copier.directory.read_lineage()) == 2
    event = run.event()
    assert (event.partner, event.copied, event.source_frames) == (1, True, 2000)
    assert (event.fitness, event.partner_fitness) == (pytest.approx(54.9), pytest.approx(60.0))
    assert event.hyperparameters == pytest.approx(run.tuned())


@pytest.mark.parametrize(
    ("percent", "partner_fitness"),
    [(55.1, 60.0), (90.0, 60.0), (10.0, None)],  # The last one's partner cannot be read.
)
def test_a_member_that_copies_nobody_keeps_its_weights_and_explores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, percent: float, partner_fitness: float | None
) -> None:
    monkeypatch.setattr(member, "_FIRST_PAUSE_SECONDS", 0.0)
    partner = _publish(tmp_path, 1, 60.0)
    if partner_fitness is None:
        shutil.rmtree(partner.directory.path / "snapshots")
    run = _Run(tmp_path, 0).learn(1500).play(percent)
    weights, hyperparameters = run.weights(), run.tuned()
    assert run.tune()
    assert np.array_equal(run.weights(), weights)
    assert run.progress() == (1500, 150)
    assert _explored(run.tuned(), hyperparameters)
    event = run.event()
    assert (event.partner, event.copied, event.source_frames) == (1, False, None)
    assert event.partner_fitness == pytest.approx(partner_fitness)


@pytest.mark.parametrize("finished", [False, True])
def test_a_run_that_is_finished_or_takes_turns_ends_with_what_it_published(
    tmp_path: Path, finished: bool
) -> None:
    weights_of_fitter = _publish(tmp_path, 1, 90.0).weights()
    run = _Run(tmp_path, 0, takes_turns=not finished)
    run.learn(run.config.total_environment_frames if finished else 2000).play(10.0)
    weights, hyperparameters = run.weights(), run.tuned()
    assert not run.tune()
    assert np.array_equal(run.weights(), weights)
    assert run.tuned() == hyperparameters
    assert len(run.directory.read_lineage()) == 1
    assert run.directory.published().fitness == pytest.approx(10.0)
    if not finished:  # The next turn begins with the comparison.
        again = _Run(tmp_path, 0, takes_turns=True)
        assert again.event().copied
        assert np.array_equal(again.weights(), weights_of_fitter)
        assert not again.member.due()


def test_each_member_explores_and_meets_others_by_chances_of_its_own(tmp_path: Path) -> None:
    _publish(tmp_path, 0, 50.0)
    runs = [_Run(tmp_path, number).learn(1500) for number in (1, 2)]
    for _, run in itertools.product(range(12), runs):
        run.learner.frames.assign_add(100)
        run.play(50.0).tune()
    lineages = [run.directory.read_lineage() for run in runs]
    assert lineages[0][1].partner == 0  # Nobody else had published yet.
    changes = []
    for number, events in enumerate(lineages, start=1):
        partners = [event.partner for event in events[1:]]
        assert set(partners) == {0, 1, 2} - {number}
        assert min(map(partners.count, set(partners))) >= 2
        values = np.array([list(event.hyperparameters.values()) for event in events])
        changes.append(values[1:] / values[:-1])
        assert 4 <= (np.abs(changes[-1] - 1) > 0.1).sum() <= 20  # A third of 36.
    # After the first comparison, both choose one of two.
    assert np.abs(changes[0] - changes[1])[1:].max() > 0.1
    assert len({tuple(event.partner == 0 for event in events[2:]) for events in lineages}) == 2


def test_the_member_that_is_furthest_behind_has_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"logdir": str(tmp_path), "total_environment_frames": 2, "pbt_places": 2}
    trained = [0, 0, 0]
    turns = []

    def train(config: Config, *_: object) -> None:
        if len(turns) == 1 and config.pbt_member == 1:
            raise InUseError("another process trains it")
        turns.append(config.pbt_member)
        trained[config.pbt_member] += 1 + config.pbt_member

    def saved_frames(folder: Path) -> int | None:
        return trained[int(folder.parent.name.removeprefix("member-"))] or None

    monkeypatch.setattr(member, "train_member", train)
    monkeypatch.setattr(member.checkpoints, "saved_frames", saved_frames)
    assert member.take_turns(Config.from_flags({**_FLAGS, **given}), {}) is None
    assert turns == [0, 2, 1, 0]


@pytest.mark.parametrize(
    "moment", ["", "population.directory.write_atomically", "runs.checkpoints.load"]
)
def test_a_member_that_dies_in_a_comparison_returns_whole_and_makes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    root = tmp_path / "dies"
    _publish(root, 1, 90.0)
    _publish(root, 2, 91.0, seed=9)
    _Run(root, 0).learn(1500).checkpoints.save()
    shutil.copytree(root, tmp_path / "lives")
    undisturbed = _Run(tmp_path / "lives", 0).play(10.0)
    undisturbed.tune()
    assert undisturbed.event().copied

    run = _Run(root, 0).play(10.0)
    save = mock.Mock(side_effect=[run.checkpoints.save(), ZeroDivisionError])
    with monkeypatch.context() as patch:
        if moment:  # Otherwise it dies when it saves the outcome.
            death = mock.Mock(side_effect=ZeroDivisionError)
            patch.setattr(f"scalable_agent_popart.{moment}", death)
        with pytest.raises(ZeroDivisionError):
            run.member.tune(save)
    again = _Run(root, 0, begin=False)
    again.play(10.0)  # The episodes since the last comparison, from its log.
    again.member.begin(again.checkpoints.save)
    assert again.directory.read_lineage() == undisturbed.directory.read_lineage()
    assert np.array_equal(again.weights(), undisturbed.weights())
    assert again.tuned() == undisturbed.tuned()
    assert not (again.directory.path / "incoming").exists()


def test_a_diverged_run_goes_on_from_anybody_who_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "_FIRST_PAUSE_SECONDS", 0.0)
    weights = _publish(tmp_path, 2, -50.0, seed=2).weights()
    shutil.rmtree(_publish(tmp_path, 1, 50.0).directory.path / "snapshots")
    _Run(tmp_path, 0).learn(1500).checkpoints.save()
    for number in range(1, 5):  # Whoever is asked first.
        run = _Run(tmp_path, 0, diverged=True)
        assert np.array_equal(run.weights(), weights)
        assert run.progress() == (1500, 150 + number)
        event = run.event()
        assert (event.fitness, event.partner) == (None, 2)
        assert (event.copied, event.started_over) == (True, False)
    assert _Run(tmp_path, 0).event() == event


def test_a_diverged_run_that_has_nobody_to_copy_starts_over(tmp_path: Path) -> None:
    runs = [_Run(tmp_path, 0).learn(1500)]
    runs[0].checkpoints.save()
    for number in (1, 2):  # Differently each time.
        runs.append(_Run(tmp_path, 0, diverged=True))
        before, after = runs[-2:]
        assert not np.array_equal(before.weights(), after.weights())
        assert np.isfinite(after.weights()).all()
        assert after.progress() == (1500, 150 + number)
        event = after.event()
        assert (event.fitness, event.copied, event.started_over) == (None, False, True)
        sampled = rules.sample(after.config.suite.search_space, [after.config.seed, number, 1])
        assert after.tuned() == pytest.approx(sampled)

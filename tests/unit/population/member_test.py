"""A member's comparisons: what is copied, when, and what a death in the middle leaves."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalable_agent_popart.population import member, pbt
from scalable_agent_popart.population.member_directory import MemberDirectory
from tests.fakes import small_learner
from tests.fakes.member_runs import BURN_IN, EPISODES, Run, explored, publish, same


def test_is_due_after_burn_in_with_enough_episodes_of_every_task(tmp_path: Path) -> None:
    run = Run(tmp_path, 1).learn(BURN_IN + 1, seed=1).play(50.0, EPISODES - 1)
    assert not run.member.due()
    run.play(50.0, 1)
    assert run.member.due()
    run = Run(tmp_path, 2).learn(BURN_IN + 1, seed=1)
    for _ in range(100):
        run.member.on_episode("catch_1", 1.0, BURN_IN + 1)
    assert not run.member.due()


def test_episodes_of_the_burn_in_do_not_count(tmp_path: Path) -> None:
    run = Run(tmp_path, 0).learn(BURN_IN, seed=1).play(90.0, 100)
    run.learner.frames.assign(BURN_IN + 1)
    assert not run.member.due()
    run.play(10.0).tune()
    published = run.directory.published()
    assert published is not None
    assert (published.fitness, published.episodes) == (pytest.approx(10.0), EPISODES)


def test_episodes_are_counted_without_reading_a_variable_for_each(tmp_path: Path) -> None:
    run = Run(tmp_path, 0).learn(BURN_IN + 1, seed=1).play(90.0)
    run.tune()
    run = Run(tmp_path, 0).play(90.0, 100)  # As when its log is read again.
    del run.member._compared_at
    run.play(90.0, 100)
    assert not run.member.due()
    run.learner.frames.assign_add(1)
    run.play(10.0)
    assert run.member.due()


def test_much_fitter_member_is_copied_with_all_that_it_learned(tmp_path: Path) -> None:
    source = publish(tmp_path, 1, 60.0)
    published, hyperparameters = source.weights(), source.tuned()
    source.learn(3000, seed=8)  # What it did since is nobody's business.
    source.learner.hyperparameters.assign({"learning_rate": 9.0})
    run = Run(tmp_path, 0).learn(1500, seed=3).play(54.9)
    assert run.tune()
    assert same(run.weights(), published)
    assert run.progress() == (1500, 151)  # To actors, other weights are newer ones.
    assert explored(run.tuned(), hyperparameters)
    event = run.directory.read_lineage()[-1]
    assert (event.partner, event.copied, event.source_frames) == (1, True, 2000)
    assert event.fitness == pytest.approx(54.9)
    assert event.partner_fitness == pytest.approx(60.0)
    assert event.hyperparameters == pytest.approx(run.tuned())


@pytest.mark.parametrize("percent", [55.1, 60.0, 90.0])
def test_member_that_is_as_fit_keeps_its_weights_and_explores(
    tmp_path: Path, percent: float
) -> None:
    publish(tmp_path, 1, 60.0)
    run = Run(tmp_path, 0).learn(1500, seed=3).play(percent)
    before, hyperparameters = run.weights(), run.tuned()
    assert run.tune()
    assert same(run.weights(), before)
    assert explored(run.tuned(), hyperparameters)
    event = run.directory.read_lineage()[-1]
    assert (event.partner, event.copied, event.source_frames) == (1, False, None)


def test_run_ends_with_what_it_published(tmp_path: Path) -> None:
    publish(tmp_path, 1, 90.0)
    run = Run(tmp_path, 0)
    run.learn(run.config.total_environment_frames, seed=3).play(10.0)
    before, hyperparameters = run.weights(), run.tuned()
    assert not run.tune()
    assert same(run.weights(), before)
    assert run.tuned() == hyperparameters
    assert len(run.directory.read_lineage()) == 1
    published = run.directory.published()
    assert published is not None
    assert published.fitness == pytest.approx(10.0)


def test_copy_is_of_what_earned_the_fitness_and_is_resumed_from(tmp_path: Path) -> None:
    published = publish(tmp_path, 1, 90.0).weights()
    run = Run(tmp_path, 0).learn(1500, seed=3).play(10.0)
    run.tune()
    again = Run(tmp_path, 0)
    assert again.resumed
    assert same(again.weights(), published)
    assert again.tuned() == run.tuned()
    assert again.progress() == run.progress()
    assert len(again.directory.read_lineage()) == 2


def test_whoever_has_published_may_be_the_partner_and_never_oneself(tmp_path: Path) -> None:
    for number in (0, 2):
        publish(tmp_path, number, 50.0)
    run = Run(tmp_path, 1).learn(1500, seed=3)
    for _ in range(25):
        run.learner.frames.assign_add(100)
        run.play(50.0).tune()
    events = run.directory.read_lineage()
    partners = [event.partner for event in events[1:]]
    assert set(partners) == {0, 2}
    assert min(partners.count(number) for number in (0, 2)) >= 4
    values = np.array([list(event.hyperparameters.values()) for event in events])
    assert 10 <= (values[1:] != values[:-1]).sum() <= 40  # Of 75, a third.


def test_alone_a_member_explores(tmp_path: Path) -> None:
    run = Run(tmp_path, 1).learn(1500, seed=3).play(50.0)
    before, hyperparameters = run.weights(), run.tuned()
    run.tune()
    assert same(run.weights(), before)
    assert explored(run.tuned(), hyperparameters)
    assert run.directory.read_lineage()[-1].partner is None


def test_fitness_is_of_the_episodes_since_the_last_comparison(tmp_path: Path) -> None:
    run = Run(tmp_path, 0).learn(1500, seed=3).play(10.0, 40)
    run.tune()
    run.learner.frames.assign(2500)
    for _ in range(7):  # Of before the comparison, as a resumed run hears them again.
        run.member.on_episode("catch_1", -1.0, 1500)
    assert not run.member.due()
    run.play(80.0).tune()
    published = run.directory.published()
    assert published is not None
    assert published.fitness == pytest.approx(80.0)
    assert (published.comparison, published.episodes, published.frames) == (2, EPISODES, 2500)


def test_taking_turns_the_comparison_is_made_when_the_next_turn_begins(tmp_path: Path) -> None:
    run = Run(tmp_path, 0, takes_turns=True).learn(1500, seed=3).play(10.0)
    assert not run.tune()
    assert len(run.directory.read_lineage()) == 1
    published = publish(tmp_path, 1, 90.0).weights()
    again = Run(tmp_path, 0, takes_turns=True)
    assert again.directory.read_lineage()[-1].copied
    assert same(again.weights(), published)
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
        "fitness": ("scalable_agent_popart.population.member_directory.write_atomically", _die),
        "copy": ("shutil.copyfile", _die),
        "load": ("scalable_agent_popart.runs.checkpoints.load", _die),
        "explore": ("scalable_agent_popart.population.pbt.explore", _die),
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
    source = publish(root, 1, 90.0)
    publish(root, 2, 91.0, seed=9)
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
    assert same(again.weights(), undisturbed.weights())
    assert again.tuned() == undisturbed.tuned()
    assert not (again.directory.path / "incoming").exists()
    assert source.directory.published() is not None


def test_partner_that_publishes_meanwhile_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = publish(tmp_path, 1, 90.0)
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
    assert not same(run.weights(), source.weights())


def test_damaged_checkpoint_of_another_is_named_and_nothing_of_it_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = publish(tmp_path, 1, 90.0)
    (data,) = (source.directory.path / "snapshots").glob("*.data-*")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 255
    data.unlink()
    data.write_bytes(content)
    run = Run(tmp_path, 0).learn(1500, seed=3).play(10.0)
    mine, hyperparameters, progress = run.weights(), run.tuned(), run.progress()
    assert run.tune()
    assert str(data.with_suffix("")) in caplog.text
    assert same(run.weights(), mine)
    assert explored(run.tuned(), hyperparameters)
    assert run.progress() == progress
    assert not run.directory.read_lineage()[-1].copied


def test_diverged_run_goes_on_from_anybody(tmp_path: Path) -> None:
    published = publish(tmp_path, 1, -50.0).weights()
    run = Run(tmp_path, 0).learn(1500, seed=3)
    run.checkpoints.save()
    run.member.on_divergence()
    again = Run(tmp_path, 0)
    assert same(again.weights(), published)
    event = again.directory.read_lineage()[-1]
    assert (event.fitness, event.copied, event.started_over) == (None, True, False)
    assert again.progress() == (1500, 151)
    # Once only.
    assert Run(tmp_path, 0).directory.read_lineage()[-1] == event


def test_diverged_run_asks_everybody_before_it_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        publish(tmp_path, number, 50.0, seed=number)
    fetch, expected = MemberDirectory.fetch, Run(tmp_path, 2, begin=False).weights()
    monkeypatch.setattr(member, "_FIRST_PAUSE_SECONDS", 0.0)

    def only_2_can_be_read(self: MemberDirectory, published: Any) -> Any:
        if published.member == 1:
            raise FileNotFoundError
        return fetch(self, published)

    monkeypatch.setattr(MemberDirectory, "fetch", only_2_can_be_read)
    run = Run(tmp_path, 0).learn(1500, seed=3)
    for _ in range(4):  # Whoever is asked first.
        run.member.on_divergence()
        run.member.begin(run.checkpoints.save)
        event = run.directory.read_lineage()[-1]
        assert (event.partner, event.copied, event.started_over) == (2, True, False)
        assert same(run.weights(), expected)


def test_diverged_run_that_has_nobody_to_copy_starts_over(tmp_path: Path) -> None:
    run = Run(tmp_path, 0).learn(1500, seed=3)
    run.checkpoints.save()
    run.member.on_divergence()
    again = Run(tmp_path, 0)
    pairs = zip(run.weights(), again.weights(), strict=True)
    assert not any((one == other).any() for one, other in pairs if one.size > 1)
    assert again.progress() == (1500, 151)
    assert all(np.isfinite(weights).all() for weights in again.weights())
    event = again.directory.read_lineage()[-1]
    assert (event.fitness, event.copied, event.started_over) == (None, False, True)
    drawn = pbt.draw(again.config.suite.search_space, [again.config.seed, 1, 1])
    assert again.tuned() == pytest.approx(drawn)
    # Nor is the next time the same.
    again.member.on_divergence()
    third = Run(tmp_path, 0)
    kernels = [
        small_learner.snapshot(each.learner.agent.trainable_variables) for each in (again, third)
    ]
    pairs = zip(*kernels, strict=True)
    assert not any((one == other).all() for one, other in pairs if one.ndim > 1)
    assert third.tuned() != again.tuned()


def test_partner_that_is_always_gone_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path, 1, 90.0)
    run = Run(tmp_path, 0).learn(1500, seed=3).play(10.0)
    mine = run.weights()
    monkeypatch.setattr(member, "_FIRST_PAUSE_SECONDS", 0.0)

    def gone(self: MemberDirectory, published: Any) -> Any:
        raise FileNotFoundError

    monkeypatch.setattr(MemberDirectory, "fetch", gone)
    assert run.tune()
    assert same(run.weights(), mine)
    event = run.directory.read_lineage()[-1]
    assert not event.copied

"""Learner and actor jobs in processes of their own, that find, lose and refuse each other."""

import json
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.training import remote_actors, transport
from tests.fakes.programs import DEADLINE_SECONDS, Programs, metrics, wait_until

_SETTINGS = {
    "level_name": "catch5",
    "use_popart": True,
    "num_actors": 5,
    "actor_threads": 1,
    "batch_size": 4,
    "unroll_length": 10,
}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


class Jobs(Programs):
    """Starts jobs of one run."""

    def __init__(self, directory: Path):
        super().__init__()
        self.logdir = directory / "run"
        self.address = f"localhost:{_free_port()}"

    def start(self, job_name: str, *own: str) -> subprocess.Popen[str]:
        settings = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        return self.run(f"--job_name={job_name}", *settings, *own)

    def learner(self, *own: str) -> subprocess.Popen[str]:
        where = (f"--learner_address={self.address}", f"--logdir={self.logdir}")
        return self.start("learner", *where, *own)

    def actor(self, task: int, *own: str) -> subprocess.Popen[str]:
        return self.start("actor", f"--learner_address={self.address}", f"--task={task}", *own)

    def frames(self) -> int:
        """How far the run has come, by its log."""
        lines = metrics(self.logdir)
        return lines[-1]["frames"] if lines else 0


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    jobs = Jobs(tmp_path)
    yield jobs
    jobs.close()


def test_actors_come_first_outlive_their_learner_and_end_with_the_run(jobs: Jobs) -> None:
    actors = [jobs.actor(task) for task in range(2)]
    often = (
        "--checkpoint_seconds=0.5",
        "--log_seconds=0.1",
        "--total_environment_frames=100000000",
    )
    first = jobs.learner(*often)
    wait_until(lambda: jobs.frames() > 2000, first, *actors)
    first.kill()
    first.wait()
    actors[0].kill()  # One returns, the other was there all the time.
    before = jobs.frames()
    second = jobs.learner(*often)
    back = jobs.actor(0)
    wait_until(lambda: jobs.frames() > before + 2000, second, back, actors[1])
    second.terminate()
    _, output = second.communicate(timeout=DEADLINE_SECONDS)
    assert second.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in output

    last = jobs.learner(f"--total_environment_frames={jobs.frames() + 4000}")
    for process in (last, back, actors[1]):
        _, output = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 0, output
        assert "Traceback" not in output
    episodes = [
        json.loads(line) for line in (jobs.logdir / "episodes.jsonl").read_text().splitlines()
    ]
    assert {episode["task"] for episode in episodes} == set(
        Config.from_flags(_SETTINGS).suite.tasks
    )
    frames = [episode["frames"] for episode in episodes]
    assert frames == sorted(frames)


def test_an_actor_of_another_configuration_is_refused_on_both_sides(jobs: Jobs) -> None:
    learner = jobs.learner("--log_seconds=0.1")
    good = jobs.actor(0)
    wait_until(lambda: jobs.frames() > 0, learner, good)
    bad = jobs.actor(3, "--network=deep", "--unroll_length=12")
    _, output = bad.communicate(timeout=DEADLINE_SECONDS)
    assert bad.returncode == 1
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    differences = (
        "--network is shallow at the learner and deep at actor job 3; "
        "--unroll_length is 10 at the learner and 12 at actor job 3"
    )
    assert differences in line
    seen = jobs.frames()
    wait_until(lambda: jobs.frames() > seen + 2000, learner, good)
    learner.terminate()
    _, output = learner.communicate(timeout=DEADLINE_SECONDS)
    assert f"actor job 3 refused: {differences}" in output


def test_an_actor_that_computes_in_another_type_plays_and_says_so_once(jobs: Jobs) -> None:
    learner = jobs.learner("--log_seconds=0.1", "--precision=float32")
    other = jobs.actor(3, "--precision=bfloat16", "--num_actors=10", "--actor_threads=2")
    wait_until(lambda: jobs.frames() > 2000, learner, other)
    outputs = []
    for process in (other, learner):
        process.terminate()
        outputs.append(process.communicate(timeout=DEADLINE_SECONDS)[1])
    difference = "--precision is float32 at the learner and bfloat16 at actor job 3"
    assert [output.count(difference) for output in outputs] == [1, 1]
    assert {line["precision"] for line in metrics(jobs.logdir)} == {"float32"}


def test_an_evaluator_follows_the_run(jobs: Jobs) -> None:
    evaluator = jobs.start("evaluator", f"--logdir={jobs.logdir}", "--test_num_episodes=5")
    training, actor = jobs.learner("--checkpoint_seconds=1"), jobs.actor(0)
    log = jobs.logdir / "evaluations.jsonl"
    wait_until(
        lambda: log.exists() and len(log.read_text().splitlines()) >= 2, evaluator, training, actor
    )
    training.terminate()
    training.wait(DEADLINE_SECONDS)
    # Another checkpoint, and with it the run's end.
    frames = f"--total_environment_frames={jobs.frames() + 40}"
    last = jobs.start("learner", f"--logdir={jobs.logdir}", frames)
    assert last.wait(DEADLINE_SECONDS) == 0
    evaluator.terminate()
    assert evaluator.wait(DEADLINE_SECONDS) in (0, 128 + signal.SIGTERM)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["frames"] for line in lines] == sorted({line["frames"] for line in lines})
    assert set(lines[0]) >= {"frames", "starts", "mean", "median", "mean_capped", "mean_return"}


# What may be asked for.


def _flags(**given: object) -> Config:
    return Config.from_flags({"level_name": "catch5", **given})


def _refusal(**given: object) -> str:
    with pytest.raises(UserError) as error:
        _flags(**given)
    return str(error.value)


def test_jobs_of_a_cluster_need_an_address_and_actors_a_number() -> None:
    where = {"learner_address": "host:1234"}
    assert _flags(**where).job_name == "learner"
    assert _flags(**where, task=0).task == 0
    assert _flags(**where, job_name="actor", task=7).task == 7
    # Fewer environments than tasks are enough for one of many jobs.
    assert (
        _flags(level_name="atari57", **where, job_name="actor", task=7, num_actors=4).num_actors
        == 4
    )
    assert "needs --learner_address" in _refusal(job_name="actor", task=1)
    assert "needs --task" in _refusal(**where, job_name="actor")
    assert "--task=3 is for --job_name=actor" in _refusal(**where, task=3)
    assert "leave it out" in _refusal(**where, mode="test")
    assert _flags(learner_address="[::1]:1").learner_address == "[::1]:1"
    # A run of many processes is tested as any other.
    trained = _flags(**where, task=0)
    assert trained.for_test({"mode": "test"}).learner_address == ""
    for address in ("host", ":1", "host:", "host:0", "host:70000", "host:x", "a b:1", "::1:5"):
        assert "must be HOST:PORT" in _refusal(learner_address=address)


# The wire, in one process: a server cannot be stopped, so each test has one of its own.


@pytest.fixture(scope="module")
def spec() -> Rollout:
    return factory.make_rollout_spec(_config())


def _config(**given: object) -> Config:
    return Config.from_flags({**_SETTINGS, "learner_address": f"localhost:{_free_port()}", **given})


def _rollouts(spec: Rollout, count: int, mark: int) -> Rollout:
    """Rollouts `[count, ...]` whose every number is `mark`."""

    def fill(leaf: tf.TensorSpec) -> np.ndarray:
        return np.full((count, *leaf.shape), mark, leaf.dtype.as_numpy_dtype)

    return tf.nest.map_structure(fill, spec)


def _wire(
    spec: Rollout, handshake: dict[str, object]
) -> tuple[transport.LearnerPort, transport.LearnerLink]:
    port = _free_port()
    server = transport.LearnerPort(port, spec, batch_size=8, handshake=handshake)
    return server, transport.LearnerLink(f"localhost:{port}", spec, handshake, "actor job 0")


def test_rollouts_arrive_whole_and_weights_as_published(spec: Rollout) -> None:
    server, link = _wire(spec, {"--network": "shallow"})
    assert link.status() is None, "nobody is let in before there are weights"
    server.publish(3, b"weights of old")
    wait_until(lambda: link.status() is not None)
    assert link.status() == transport.LearnerStatus(free=8, version=3, finished=False)
    server.publish(4, b"weights")
    assert link.weights() == (4, b"weights")
    link.put(_rollouts(spec, 3, mark=1))
    link.put(_rollouts(spec, 5, mark=2))
    view = link.status()
    assert view is not None
    assert (view.free, view.version) == (0, 4)
    assert server.fill() == 1.0
    batch = server.get(8)
    assert batch is not None
    assert sorted(batch.task_id.tolist()) == [1] * 3 + [2] * 5
    for leaf, own in zip(tf.nest.flatten(batch), tf.nest.flatten(spec), strict=True):
        assert leaf.shape == (8, *own.shape)
        assert leaf.dtype == own.dtype.as_numpy_dtype
    server.finish()
    view = link.status()
    assert view is not None
    assert view.finished
    waiting = threading.Thread(target=lambda: seen.append(server.get(8)))
    seen: list[object] = []
    waiting.start()
    server.close()
    waiting.join(DEADLINE_SECONDS)
    assert seen == [None]


def test_rollouts_are_counted_while_the_first_batch_waits_for_the_rest(spec: Rollout) -> None:
    server, link = _wire(spec, {})
    server.publish(0, b"")
    wait_until(lambda: link.status() is not None)
    waiting = threading.Thread(target=lambda: server.get(8))
    waiting.start()
    link.put(_rollouts(spec, 3, mark=1))
    assert server.fill() == 3 / 8
    assert waiting.is_alive()
    link.put(_rollouts(spec, 5, mark=1))
    waiting.join(DEADLINE_SECONDS)
    assert not waiting.is_alive()
    server.close()


def test_who_waits_for_room_hears_of_the_end(spec: Rollout) -> None:
    server, link = _wire(spec, {})
    server.publish(0, b"")
    link.put(_rollouts(spec, 8, mark=1))
    waiting = threading.Thread(target=lambda: link.put(_rollouts(spec, 1, mark=2)))
    waiting.start()
    server.finish()
    server.close()
    waiting.join(DEADLINE_SECONDS)
    assert not waiting.is_alive()
    wait_until(lambda: (view := link.status()) is not None and view.finished)


def test_a_lost_session_is_closed_without_waiting_for_it(spec: Rollout) -> None:
    server, link = _wire(spec, {})
    server.publish(0, b"")
    wait_until(lambda: link.status() is not None)
    learner_is_back, closed = threading.Event(), threading.Event()

    class Lost:
        def run(self, *_: object) -> None:
            raise tf.errors.DeadlineExceededError(None, None, "no answer")

        def close(self) -> None:
            learner_is_back.wait(DEADLINE_SECONDS)
            closed.set()
            raise tf.errors.DeadlineExceededError(None, None, "still no answer")

    link._session = Lost()
    assert link.status() is None
    assert not closed.is_set()
    learner_is_back.set()
    assert closed.wait(DEADLINE_SECONDS)
    wait_until(lambda: link.status() is not None)


def test_a_link_to_nobody_says_so_at_once_and_often_does_not_even_look(spec: Rollout) -> None:
    link = transport.LearnerLink(f"localhost:{_free_port()}", spec, {}, "actor job 0")
    assert link.status() is None
    assert link.weights() is None
    link.put(_rollouts(spec, 1, mark=0))  # Lost, without a word.


def test_a_link_refuses_a_learner_that_learns_something_else(spec: Rollout) -> None:
    server, _ = _wire(spec, {"--network": "shallow"})
    server.publish(0, b"")
    other = transport.LearnerLink(server.address, spec, {"--network": "deep"}, "actor job 7")
    difference = "--network is shallow at the learner and deep at actor job 7"
    with pytest.raises(UserError, match=difference):
        other.status()
    assert server.messages() == [f"actor job 7 refused: {difference}"]
    assert server.messages() == []


def test_a_port_that_is_taken_is_refused(spec: Rollout) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} of --learner_address"):
            transport.LearnerPort(port, spec, 8, {})


def test_weights_cross_the_wire_as_they_are(spec: Rollout) -> None:
    config = _config()
    agent = factory.make_agent(config, spec)
    blob = b"".join(v.numpy().tobytes() for v in agent.trainable_variables)
    tensors = remote_actors._split(blob, agent.trainable_variables)
    for tensor, variable in zip(tensors, agent.trainable_variables, strict=True):
        np.testing.assert_array_equal(tensor, variable)


def test_jobs_deal_the_levels_on_where_others_left_off() -> None:
    for num_actors, num_tasks, num_jobs in ((10, 57, 40), (57, 57, 3), (3, 5, 7)):
        dealt = [
            np.concatenate(factory.deal_tasks(num_actors, num_tasks, 2, job))
            for job in range(num_jobs)
        ]
        counts = np.bincount(np.concatenate(dealt), minlength=num_tasks)
        assert counts.max() - counts.min() <= 1
        assert all(len(own) == num_actors for own in dealt)


# The learner's own side.


class FakePort:
    """Notes what it is to show, and takes as long for it as it is told to."""

    def __init__(self, *_: object) -> None:
        self.shown: list[tuple[int, bytes]] = []
        self.finished_after: int | None = None
        self.free = threading.Event()
        self.free.set()
        self.error: Exception | None = None
        self._closed = threading.Event()

    def publish(self, version: int, weights: bytes) -> None:
        self.shown.append((version, weights))
        self.free.wait(DEADLINE_SECONDS)
        if self.error is not None:
            raise self.error

    def finish(self) -> None:
        self.finished_after = len(self.shown)

    def get(self, batch_size: int) -> None:
        self._closed.wait(DEADLINE_SECONDS)

    def close(self) -> None:
        self._closed.set()


def _remote_actors(
    spec: Rollout, monkeypatch: pytest.MonkeyPatch
) -> tuple[Learner, FakePort, remote_actors.RemoteActors]:
    monkeypatch.setattr(remote_actors, "LearnerPort", FakePort)
    monkeypatch.setattr(remote_actors, "_FAREWELL_SECONDS", 0.0)
    config = _config()
    learner = factory.make_learner(config, spec)
    actors = remote_actors.RemoteActors(config, spec, learner)
    return learner, actors._port, actors  # type: ignore[return-value]


def test_the_learner_does_not_wait_for_its_weights_to_be_shown(
    spec: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, port, actors = _remote_actors(spec, monkeypatch)
    variables = learner.agent.trainable_variables

    def weights() -> bytes:
        return b"".join(v.numpy().tobytes() for v in variables)

    with actors:
        assert port.shown == [(0, weights())], "shown before anyone is let in"
        port.free.clear()
        expected = {}
        for version in (1, 2, 3):
            variables[0].assign_add(tf.ones_like(variables[0]))
            expected[version] = weights()
            actors.publish(version)
            wait_until(lambda: len(port.shown) == 2)
        variables[0].assign_add(tf.ones_like(variables[0]))  # Not to be seen yet.
        learner.frames.assign(10**12)
        port.free.set()
    assert port.shown == [(0, port.shown[0][1]), (1, expected[1]), (3, expected[3])]
    assert port.finished_after == 3, "actors are sent away with the newest"


def test_an_error_while_weights_are_shown_reaches_the_learner(
    spec: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, port, actors = _remote_actors(spec, monkeypatch)

    def wait_for_batches() -> None:
        with actors:
            port.error = ZeroDivisionError("while weights are shown")
            actors.publish(1)
            while True:
                assert actors.next_batch() is None

    with pytest.raises(ZeroDivisionError, match="while weights are shown"):
        wait_for_batches()


# The learner as an actor thread sees it.


class FakeLink:
    """A learner that stands as told, or is not there."""

    def __init__(self) -> None:
        self.view: transport.LearnerStatus | None = transport.LearnerStatus(
            free=100, version=1, finished=False
        )
        self.fetched = 0
        self.sent: list[int] = []

    def status(self) -> transport.LearnerStatus | None:
        return self.view

    def weights(self) -> tuple[int, bytes] | None:
        self.fetched += 1
        return None if self.view is None else (self.view.version, b"\x00\x00\x80?")

    def put(self, rollouts: Rollout) -> None:
        self.sent.append(len(rollouts.task_id))


def _remote() -> tuple[FakeLink, remote_actors.RemoteLearner]:
    link = FakeLink()
    variables = [tf.Variable([0.0])]
    return link, remote_actors.RemoteLearner(link, variables, threading.Event())  # type: ignore[arg-type]


def test_weights_are_fetched_once_and_again_only_if_they_are_others() -> None:
    link, learner = _remote()
    assert learner.wait(lambda: False)
    for _ in range(3):
        assert learner.latest().version == 1
    np.testing.assert_array_equal(learner.latest().tensors[0], [1.0])
    assert link.fetched == 1
    link.view = None
    assert learner.latest().version == 1, "the last ones serve while there is no learner"
    # A learner that was started again may have older ones.
    for version in (5, 3):
        link.view = transport.LearnerStatus(free=0, version=version, finished=False)
        assert learner.latest().version == version
    assert link.fetched == 3


def test_room_is_what_the_learner_has_and_none_without_one(spec: Rollout) -> None:
    link, learner = _remote()
    for _ in range(10):
        learner.put(_rollouts(spec, 1, mark=0))  # It answers at once: more may be sent.
    assert learner.reserve(8, 0.0, behind=False) == 8
    link.view = transport.LearnerStatus(free=3, version=1, finished=False)
    assert learner.reserve(8, 0.0, behind=False) == 3
    for view in (None, transport.LearnerStatus(free=0, version=1, finished=False)):
        link.view = view
        assert learner.reserve(8, 0.01, behind=False) == 0
    assert not learner.closed
    link.view = transport.LearnerStatus(free=0, version=1, finished=True)
    assert learner.reserve(8, 60.0, behind=False) == 0
    assert learner.closed


def test_who_had_to_wait_asks_for_less(spec: Rollout, monkeypatch: pytest.MonkeyPatch) -> None:
    _, learner = _remote()
    for _ in range(10):
        learner.put(_rollouts(spec, 1, mark=0))
    moments = iter([0.0, 5.0])
    monkeypatch.setattr(remote_actors.time, "monotonic", lambda: next(moments, 5.0))
    monkeypatch.setattr(remote_actors.random, "uniform", lambda low, high: 0.0)
    learner.put(_rollouts(spec, 1, mark=0))
    assert learner.reserve(8, 0.0, behind=False) == 1

"""The learner's port and the ways to it: whole rollouts, refusals, losses, and closed doors."""

import errno
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import grpc
import numpy as np
import pytest
import tensorflow as tf
import tree

from environments import ArraySpec
from scalable_agent_popart import rollouts
from scalable_agent_popart.acting.policy import Weights
from scalable_agent_popart.acting.rollout_queue import RolloutQueue
from scalable_agent_popart.distributed import keys, wire
from scalable_agent_popart.distributed import link as link_module
from scalable_agent_popart.distributed import port as port_module
from scalable_agent_popart.distributed.learner_pb2 import (
    HandshakeRequest,
    PutRequest,
    StatusReply,
    StatusRequest,
    WeightsRequest,
)
from scalable_agent_popart.distributed.link import LearnerLink, learner_method
from scalable_agent_popart.distributed.port import LearnerPort
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.rollouts import Rollout
from tests.fakes.programs import DEADLINE_SECONDS, ROOT, run_python, wait_until

SPEC = rollouts.rollout_spec(ArraySpec((2, 3, 1), np.uint8), (), num_actions=3, unroll_length=4)
HANDSHAKE = {"--network": "shallow"}
NUM_TASKS = 3
NUM_LEAVES = len(tf.nest.flatten(SPEC))


def marked(count: int, mark: int) -> Rollout:
    """Rollouts `[count, ...]` whose every number is `mark`."""
    return tf.nest.map_structure(
        lambda leaf: np.full((count, *leaf.shape), mark, leaf.dtype.as_numpy_dtype), SPEC
    )


def put(link: LearnerLink, rollouts: Rollout, turn: int = 1) -> StatusReply | None:
    """Sends rollouts of a turn to a link's learner."""
    leaves = tf.nest.flatten(rollouts)
    return link.call("Put", PutRequest(count=len(leaves[0]), turn=turn), leaves)


def status(link: LearnerLink, wait: bool = False, turn: int = 1) -> StatusReply | None:
    return link.call("Status", StatusRequest(wait=wait, turn=turn))


def weights(link: LearnerLink, known: int = -1) -> tuple[int, list[bytes]] | None:
    reply = link.call("Weights", WeightsRequest(known_version=known))
    if reply is None or reply.version == known:
        return None
    return reply.version, list(reply.variables)


def shown(version: int, *variables: bytes) -> Weights:
    """Weights whose variables have these bytes."""
    return Weights(version, [tf.constant(np.frombuffer(v, np.uint8)) for v in variables])


class Wire:
    """A port in front of a queue for 8 rollouts and of `weights`, its keys, and links to it."""

    def __init__(self, directory: Path):
        self.keys = directory / "keys"
        keys.make(self.keys)
        self.weights = shown(0)
        self.ports: list[LearnerPort] = []
        self.links: list[LearnerLink] = []

    def open(self, address: str = "127.0.0.1:0", role: str = keys.LEARNER) -> LearnerPort:
        self.queue = RolloutQueue(SPEC, 8)
        shows = keys.load(self.keys, role)
        port = LearnerPort(address, SPEC, NUM_TASKS, self.queue, self, HANDSHAKE, shows)
        self.ports.append(port)
        return port

    def latest(self) -> Weights:
        return self.weights

    def link(self, name: str = "actor job 0", handshake: dict[str, str] = HANDSHAKE) -> LearnerLink:
        def locate() -> tuple[str, keys.Keys]:
            return self.ports[-1].address, keys.load(self.keys, keys.ACTOR)

        self.links.append(LearnerLink(locate, handshake, name))
        return self.links[-1]

    def serve(self, *variables: bytes) -> LearnerLink:
        """Opens a port that shows weights of version 0; returns a link that has found it."""
        self.weights = shown(0, *variables)
        self.open().start()
        link = self.link()
        wait_until(lambda: status(link) is not None)
        return link

    def channel(self) -> grpc.Channel:
        return link_module.open_channel(self.ports[-1].address, keys.load(self.keys, keys.ACTOR))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Wire]:
    run = Wire(tmp_path)
    yield run
    for link in run.links:
        link.close()
    for port in run.ports:
        port.close()


def test_rollouts_arrive_whole_and_weights_as_published(run: Wire) -> None:
    port, link = run.open(), run.link()
    assert status(link) is weights(link) is None, "nobody is let in before the start"
    assert put(link, marked(1, 0)) is None
    port.start()
    wait_until(lambda: status(link) is not None)
    assert status(link) == StatusReply(free=8)
    assert weights(link, 3) == (0, [])
    run.weights = shown(4, b"weights", b"of two variables")
    assert weights(link, 0) == (4, [b"weights", b"of two variables"])
    assert weights(link, 4) is None, "they are known"
    assert put(link, marked(3, 1), turn=2) == StatusReply(taken=3, free=5, newest_turn=2)
    assert put(link, marked(6, 2), turn=2).taken == 5, "as many as there is room for"
    assert status(link, turn=1).free == 2, "for those behind"
    batch = run.queue.get(8)
    assert batch is not None
    assert sorted(batch.task_id.numpy().tolist()) == [1] * 3 + [2] * 5
    for leaf, one in zip(tf.nest.flatten(batch), tf.nest.flatten(SPEC), strict=True):
        assert leaf.shape == (8, *one.shape)
        assert leaf.dtype == one.dtype
    assert run.queue.fill() == 0
    port.finish()
    assert status(link, turn=2) == StatusReply(free=8, finished=True, newest_turn=2)


def test_weights_that_are_not_finite_are_never_shown(run: Wire) -> None:
    link, replies = run.serve(), []
    for version, number in enumerate((np.nan, 1.0, np.inf, 2.0)):
        run.weights = Weights(version, [tf.constant([0.0, number])])
        replies.append(weights(link))
        if version == 0:  # A job may know weights of the learner before it was started again.
            assert weights(link, 7) is None
    one, two = (np.array([0.0, number], np.float32).tobytes() for number in (1.0, 2.0))
    assert replies == [None, (1, [one]), (1, [one]), (3, [two])]
    assert weights(link, 3) is None


def test_nobody_waits_for_weights_that_another_thread_copies(run: Wire) -> None:
    link, (port,) = run.serve(b"first"), run.ports
    with port._copying:
        assert weights(link) is None
    assert weights(link) == (0, [b"first"])
    run.weights = shown(1, b"second")
    with port._copying:
        assert weights(link) == (0, [b"first"])
    assert weights(link) == (1, [b"second"])


def test_bytes_are_read_as_they_were_laid_out() -> None:
    generator = np.random.default_rng(0)
    leaves = [
        generator.integers(2, size=(3, *leaf.shape)).astype(leaf.dtype.as_numpy_dtype)
        for leaf in tf.nest.flatten(SPEC)
    ]
    request = PutRequest(session=b"s" * 16, number=7, count=3, turn=3)
    data = wire.serialize(request, [np.asfortranarray(leaf) for leaf in leaves])
    request.leaves.extend(leaf.tobytes() for leaf in leaves)
    assert data == request.SerializeToString(), "as protobuf itself writes it"
    reader = wire.RolloutReader(SPEC, NUM_TASKS)
    with pytest.raises(ValueError, match="put 0 rollouts at once"):
        reader.read(data, 0)
    with pytest.raises(ValueError, match=r"3 rollouts .*24 bytes .*policy_version"):
        reader.read(data[:-1], 3)
    read = reader.read(data, 3)
    for leaf, expected in zip(read, leaves, strict=True):
        np.testing.assert_array_equal(leaf, expected)


def test_a_learner_that_is_back_is_found_and_takes_no_request_of_before(run: Wire) -> None:
    link = run.serve(b"first")
    run.ports[0].close()
    assert put(link, marked(1, 0)) is None, "lost with the learner"
    run.weights = shown(2, b"second")
    run.open().start()
    wait_until(lambda: weights(link) == (2, [b"second"]))
    assert put(link, marked(1, 1)) == StatusReply(taken=1, free=7, newest_turn=1)
    assert run.queue.get(1).task_id.numpy() == [1]  # type: ignore[union-attr]


def test_the_time_without_a_learner_begins_with_its_loss(
    run: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(link_module, "time", SimpleNamespace(monotonic=lambda: now))
    link, port = run.link(), run.open()
    now = 50.0
    assert link.lost_seconds == 50.0
    port.start()
    assert weights(link) == (0, [])
    now = 90.0
    assert link.lost_seconds == 0.0
    port.close()
    assert weights(link) is None
    now = 100.0
    assert link.lost_seconds == 10.0


def test_a_link_that_waits_learns_of_capacity_at_once(
    run: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = run.serve()
    put(link, marked(8, 1))
    assert status(link, wait=True) == StatusReply(newest_turn=1)
    # The answer that comes after waiting in vain would be too late for the link.
    monkeypatch.setattr(port_module, "_WAIT_SECONDS", 2 * link_module._TIMEOUT_SECONDS)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(status, link, wait=True)
        wait_until(lambda: bool(answer.done() or run.queue._changed._waiters))
        run.queue.get(8)
    assert answer.result() == StatusReply(free=8, newest_turn=1)


def test_of_messages_that_wait_the_lowest_turn_is_taken_first(
    run: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_module, "_WAIT_SECONDS", DEADLINE_SECONDS)
    links = {3: run.serve(), 2: run.link()}
    put(links[3], marked(8, 1))
    wait_until(lambda: status(links[2]) is not None)
    with ThreadPoolExecutor() as pool:
        answers = {turn: pool.submit(put, links[turn], marked(1, 1), turn) for turn in links}
        wait_until(lambda: sorted(run.queue._waiting) == [2, 3])
        run.queue.get(1)
        assert answers[2].result(DEADLINE_SECONDS).taken == 1
        assert not answers[3].done()
        run.queue.get(1)
    assert answers[3].result().taken == 1


def test_clients_that_ask_in_vain_ask_again_one_after_the_other(
    run: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = [run.serve(), *(run.link() for _ in range(6))]
    put(links[0], marked(7, 1))
    assert status(links[0]) == StatusReply(free=1, newest_turn=1)
    put(links[0], marked(1, 1))
    monkeypatch.setattr(port_module, "time", SimpleNamespace(monotonic=lambda: 1e9))
    monkeypatch.setattr(port_module, "_QUESTIONS_PER_SECOND", 0.25)
    pauses = [
        status(link, bool(waits)).pause  # type: ignore[union-attr]
        for link, waits in zip(links, (1, 1, 0, 0, 0, 1, 0), strict=True)
    ]
    # Seconds; those that wait at the learner make room for others, and none is sent off for long.
    assert pauses == [0.0, 0.0, 0.0, 4.0, 8.0, 10.0, 10.0]
    run.queue.get(8)
    assert status(run.link()) == StatusReply(free=8, newest_turn=1)


def test_an_error_of_the_queue_reaches_the_learner(
    run: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, (port,) = run.serve(), run.ports
    monkeypatch.setattr(run.queue, "put", lambda leaves: 1 / 0)
    port.raise_error()
    assert put(link, marked(1, 1)) is None
    with pytest.raises(ZeroDivisionError):
        port.raise_error()


def test_differences_are_refused_on_both_sides(run: Wire, caplog: pytest.LogCaptureFixture) -> None:
    run.open().start()
    other = run.link("actor job 7", handshake={"--network": "deep"})
    difference = "--network is shallow at the learner and deep at actor job 7"
    with pytest.raises(UserError, match=difference):
        status(other)
    assert caplog.records[-1].getMessage() == f"actor job 7 refused: {difference}"


def test_files_that_cannot_be_read_for_a_moment_are_waited_for(
    run: Wire, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "_SECONDS_BETWEEN_WARNINGS", 0)
    error = UserError("the keys cannot be read: Stale file handle")
    error.__cause__ = OSError(errno.ESTALE, "Stale file handle")
    run.open().start()
    link = run.link()
    link._locate = mock.Mock(side_effect=[error, link._locate()])
    assert status(link) is None
    assert [r.getMessage() for r in caplog.records] == [f"waiting for the learner: {error}"]
    wait_until(lambda: status(link) is not None)


# The second stranger has keys of the same run, but no actor job's.
@pytest.mark.parametrize(("folder", "role"), [("other", keys.ACTOR), ("keys", keys.LEARNER)])
def test_nobody_without_an_actor_jobs_keys_gets_an_answer(
    run: Wire, tmp_path: Path, folder: str, role: str
) -> None:
    link, (port,) = run.serve(b"secret"), run.ports
    assert weights(link) == (0, [b"secret"])
    keys.make(tmp_path / "other")
    authority = keys.load(run.keys, keys.ACTOR).authority
    shows = keys.load(tmp_path / folder, role)._replace(authority=authority)
    channel = link_module.open_channel(port.address, shows)
    with channel, pytest.raises(grpc.RpcError) as refused:
        learner_method(channel, "Weights")(b"", timeout=20)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_client_with_an_actors_keys_cannot_play_the_learner(run: Wire) -> None:
    run.open(role=keys.ACTOR).start()
    assert weights(run.link()) is None
    run.open().start()
    assert weights(run.link()) == (0, [])


TOO_MUCH = HandshakeRequest(name="x" * port_module._MAX_HANDSHAKE_BYTES).SerializeToString()


@pytest.mark.parametrize(
    ("method", "data", "code"),
    [
        (f"{wire.SERVICE}/Status", b"", "UNAUTHENTICATED"),
        (f"{wire.SERVICE}/Weights", b"", "UNAUTHENTICATED"),
        (f"{wire.SERVICE}/Put", b"", "UNAUTHENTICATED"),
        (f"{wire.SERVICE}/Handshake", TOO_MUCH, "PERMISSION_DENIED"),
        ("Learner/Handshake", b"", "UNIMPLEMENTED"),  # Another version may have this service.
    ],
)
def test_nothing_is_answered_before_a_handshake(
    run: Wire, method: str, data: bytes, code: str
) -> None:
    run.open().start()
    with run.channel() as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(f"/{method}")(data, timeout=20)
    assert refused.value.code().name == code
    # An actor job of another version ends with a line instead of waiting.
    assert (refused.value.code() in link_module._REFUSALS) == method.endswith("Handshake")


def test_a_job_that_the_learner_does_not_understand_is_told_so(
    run: Wire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run.open().start()
    link, path = run.link(), "/popart_impala.Learner/Handshake"

    monkeypatch.setattr(HandshakeRequest, "SerializeToString", lambda request: b"no message")
    with pytest.raises(UserError, match=f"10 bytes that are no {path}.*run the same version"):
        wait_until(lambda: status(link) is not None)
    assert f"which sent 10 bytes that are no {path}" in caplog.text


def test_a_number_that_is_not_finite_is_named_on_both_sides(
    run: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    link, rollouts = run.serve(), marked(2, 1)
    rollouts.env_outputs.reward[1, 2] = -np.inf
    what = "put a number that is not finite: env_outputs.reward holds -inf"
    with pytest.raises(UserError, match=f"dropped this job, which {what}; fix the env"):
        put(link, rollouts)
    assert what in caplog.text


def session(channel: grpc.Channel) -> bytes:
    request = HandshakeRequest(name="client", settings=HANDSHAKE).SerializeToString()
    return learner_method(channel, "Handshake")(request, timeout=20).session


def put_request(leaves: dict[int, bytes] | None = None, **fields: int) -> PutRequest:
    """A request with a rollout of ones, some of whose leaves are changed, by their number."""
    ones = [leaf.tobytes() for leaf in tf.nest.flatten(marked(1, 1))]
    changed = dict(enumerate(ones)) | (leaves or {})
    return PutRequest(**{"number": 2, "count": 1, "turn": 1, **fields}, leaves=changed.values())


def leaf(name: str, value: float) -> dict[int, bytes]:
    """The named leaf of a rollout, with another value."""
    names = [".".join(map(str, path)) for path, _ in tree.flatten_with_path(SPEC)]
    array = tf.nest.flatten(marked(1, 1))[names.index(name)]
    return {names.index(name): np.full_like(array, value).tobytes()}


BAD_PUTS = {
    "truncated": (put_request({0: bytes(3)}), "without 4 bytes of task_id"),
    "too long": (put_request({0: bytes(5)}), "without 4 bytes of task_id"),
    "too many rollouts": (put_request(count=9), "put 9 rollouts at once"),
    "another count": (put_request(count=2), "put 2 rollouts without 8 bytes of task_id"),
    "another leaf": (put_request({NUM_LEAVES: b"x"}), "put 1 rollouts and 3 more bytes"),
    "no rollouts": (put_request(count=0), "put rollouts behind another head"),
    "sent again": (put_request(number=1), "sent request 1 again"),
    "no number": (put_request(number=0), "put rollouts behind another head"),
    "a turn that is not": (put_request(turn=2**32 - 1), "put rollouts of the turn 4294967295"),
    "a task that is not": (put_request(leaf("task_id", 7)), "task_id of 7, which is not in"),
    "an action that is not": (put_request(leaf("agent_outputs.action", 3)), "action of 3, which"),
    "a version below 0": (put_request(leaf("policy_version", -1)), "policy_version of -1, which"),
    "no flags": (put_request({5: bytes([2] * 5)}), "done of 2, which is not in [0, 2)"),
}


@pytest.mark.parametrize("bad", BAD_PUTS)
def test_a_client_that_sends_what_cannot_be_is_dropped_with_one_line(
    run: Wire, caplog: pytest.LogCaptureFixture, bad: str
) -> None:
    run.open().start()
    rubbish, why = BAD_PUTS[bad]
    first, good = put_request(number=1), put_request(number=3)
    codes = []
    with run.channel() as channel:
        send = learner_method(channel, "Put")
        first.session = rubbish.session = good.session = session(channel)
        assert send(first.SerializeToString(), timeout=20).taken == 1
        for request in (rubbish, rubbish, good):
            with pytest.raises(grpc.RpcError) as refused:
                send(request.SerializeToString(), timeout=20)
            codes.append(refused.value.code().name)
        good.session = session(channel)
        assert send(good.SerializeToString(), timeout=20).taken == 1
    assert codes == ["PERMISSION_DENIED", "UNAUTHENTICATED", "UNAUTHENTICATED"]
    (line,) = [r.getMessage() for r in caplog.records if "dropped a client" in r.getMessage()]
    assert why in line
    assert run.queue.free() == 6


def test_the_generated_modules_are_those_of_the_proto(tmp_path: Path) -> None:
    folder = "scalable_agent_popart/distributed"
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi")]
    run_python("-m", "grpc_tools.protoc", "-I.", *outputs, f"{folder}/learner.proto")
    made = sorted((tmp_path / folder).iterdir())
    assert len(made) == 2
    for file in made:
        assert file.read_text() == (ROOT / folder / file.name).read_text(), file.name


def test_a_port_that_is_taken_is_refused(run: Wire) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(UserError, match=r"port .* of --learner_address"):
            run.open(f"127.0.0.1:{other.getsockname()[1]}")


@pytest.mark.parametrize(
    ("host", "reached"), [("127.0.0.1", False), ("127.0.0.3", False), ("learner-7", True)]
)
def test_a_loopback_address_is_open_to_its_own_machine_only(
    run: Wire, host: str, reached: bool
) -> None:
    port = run.open(f"{host}:0")
    port.start()
    # This address stands for another interface than the one that was asked for.
    with socket.socket() as other:
        number = int(port.address.rpartition(":")[2])
        assert (other.connect_ex(("127.0.0.2", number)) == 0) == reached

"""The learner's port and the ways to it: whole rollouts, refusals, losses, and closed doors."""

import errno
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc
import numpy as np
import pytest
import tensorflow as tf

from environments import ArraySpec
from scalable_agent_popart import rollouts
from scalable_agent_popart.acting.rollout_queue import RolloutQueue
from scalable_agent_popart.distributed import handshake, keys
from scalable_agent_popart.distributed import wire as wire_module
from scalable_agent_popart.distributed.wire import LearnerLink, LearnerPort, LearnerStatus
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.rollouts import Rollout
from tests.fakes.programs import DEADLINE_SECONDS, wait_until

SPEC = rollouts.rollout_spec(ArraySpec((2, 3, 1), np.uint8), (), num_actions=3, unroll_length=4)
HANDSHAKE = {"--network": "shallow"}
NUM_TASKS = 3


def marked(count: int, mark: int) -> Rollout:
    """Rollouts `[count, ...]` whose every number is `mark`."""
    return tf.nest.map_structure(
        lambda leaf: np.full((count, *leaf.shape), mark, leaf.dtype.as_numpy_dtype), SPEC
    )


class Wire:
    """A port in front of a queue for 8 rollouts, its keys, and links to it."""

    def __init__(self, directory: Path):
        self.keys = directory / "keys"
        keys.make(self.keys)
        self.ports: list[LearnerPort] = []
        self.links: list[LearnerLink] = []

    def open(
        self, address: str = "127.0.0.1:0", handshake: dict[str, str] = HANDSHAKE
    ) -> LearnerPort:
        self.queue = RolloutQueue(SPEC, 8)
        own = keys.load(self.keys, keys.LEARNER)
        self.ports.append(LearnerPort(address, SPEC, NUM_TASKS, self.queue, handshake, own))
        return self.ports[-1]

    def link(self, name: str = "actor job 0", **settings: Any) -> LearnerLink:
        given = {"handshake": HANDSHAKE, **settings}

        def locate() -> tuple[str, keys.Keys]:
            return self.ports[-1].address, keys.load(self.keys, keys.ACTOR)

        self.links.append(LearnerLink(locate, name=name, **given))
        return self.links[-1]

    def call(self, channel: grpc.Channel, method: str, request: bytes) -> bytes:
        with channel:
            return channel.unary_unary(f"/Learner/{method}")(request, timeout=20)


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    wire = Wire(tmp_path)
    yield wire
    for link in wire.links:
        link.close()
    for port in wire.ports:
        port.close()


def test_rollouts_arrive_whole_and_weights_as_published(wire: Wire) -> None:
    port, link = wire.open(), wire.link()
    assert link.status() is link.weights() is None, "nobody is let in before there are weights"
    assert link.put(marked(1, 0)) is None
    port.publish(3, b"older weights")
    wait_until(lambda: link.status() is not None)
    assert link.status() == LearnerStatus(free=8, version=3, finished=False)
    port.publish(4, b"weights")
    assert link.weights(3) == (4, b"weights")
    assert link.weights(4) is None, "they are known"
    assert link.put(marked(3, 1)) == (3, LearnerStatus(5, 4, False))
    assert link.put(marked(6, 2)) == (5, LearnerStatus(0, 4, False)), "as many as there is room for"
    batch = wire.queue.get(8)
    assert batch is not None
    assert sorted(batch.task_id.numpy().tolist()) == [1] * 3 + [2] * 5
    for leaf, own in zip(tf.nest.flatten(batch), tf.nest.flatten(SPEC), strict=True):
        assert leaf.shape == (8, *own.shape)
        assert leaf.dtype == own.dtype
    assert wire.queue.fill() == 0
    port.finish()
    assert link.status() == LearnerStatus(8, 4, True)


def test_bytes_are_read_as_they_were_laid_out() -> None:
    generator = np.random.default_rng(0)
    sent = tf.nest.map_structure(
        lambda leaf: generator.integers(2, size=(3, *leaf.shape)).astype(leaf.dtype.as_numpy_dtype),
        SPEC,
    )
    read = wire_module._Reader(SPEC, NUM_TASKS).read(memoryview(wire_module.to_bytes(sent)), 3)
    for leaf, expected in zip(read, tf.nest.flatten(sent), strict=True):
        np.testing.assert_array_equal(leaf, expected)


def test_a_learner_that_is_back_is_found_and_takes_no_request_of_before(wire: Wire) -> None:
    link = wire.link()
    first = wire.open()
    first.publish(1, b"first")
    wait_until(lambda: link.status() is not None)
    first.close()
    assert link.put(marked(1, 0)) is None, "lost with the learner"
    wire.open().publish(2, b"second")
    wait_until(lambda: link.weights() == (2, b"second"))
    assert link.put(marked(1, 1)) == (1, LearnerStatus(7, 2, False))
    assert wire.queue.get(1).task_id.numpy() == [1]  # type: ignore[union-attr]


def test_a_learner_of_another_kind_at_the_same_address_is_noticed(wire: Wire) -> None:
    link = wire.link()
    first = wire.open()
    first.publish(1, b"first")
    wait_until(lambda: link.status() is not None)
    first.close()
    wire.open(first.address, {"--network": "deep", "--new_flag": "1"}).publish(2, b"other shapes")
    with pytest.raises(UserError, match=r"--network is deep .* --new_flag is 1 at the learner and"):
        wait_until(lambda: link.weights() is not None)


def test_a_link_that_waits_learns_of_capacity_at_once(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.open().publish(0, b"")
    link = wire.link()
    wait_until(lambda: link.put(marked(8, 1)) is not None)
    assert link.status(0.1) == LearnerStatus(0, 0, False)
    # The answer that comes after waiting in vain would be too late for the link.
    monkeypatch.setattr(wire_module, "_WAIT_SECONDS", 2 * wire_module._TIMEOUT_SECONDS)
    answers: list[LearnerStatus | None] = []
    asks = threading.Thread(target=lambda: answers.append(link.status(0.1)))
    asks.start()
    wait_until(lambda: bool(answers or wire.queue._changed._waiters))
    wire.queue.get(8)
    asks.join(DEADLINE_SECONDS)
    assert answers == [LearnerStatus(8, 0, False)]


def test_clients_that_ask_in_vain_ask_again_one_after_the_other(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.open().publish(0, b"")
    links = [wire.link() for _ in range(7)]
    wait_until(lambda: links[0].put(marked(7, 1)) is not None)
    assert links[0].status() == LearnerStatus(1, 0, False, pause=0.0)
    links[0].put(marked(1, 1))
    still = SimpleNamespace(monotonic=lambda: 1e9, sleep=lambda seconds: None)
    monkeypatch.setattr(wire_module, "time", still)
    monkeypatch.setattr(wire_module, "_QUESTIONS_PER_SECOND", 0.25)
    pauses = [
        link.status(seconds).pause  # type: ignore[union-attr]
        for link, seconds in zip(links, (1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0), strict=True)
    ]
    # Seconds; those that wait at the learner make room for others, and none is sent off for long.
    assert pauses == [0.0, 0.0, 0.0, 4.0, 8.0, 10.0, 10.0]
    wire.queue.get(8)
    assert wire.link().status() == LearnerStatus(8, 0, False, pause=0.0)


class Answers(LearnerLink):
    """A link whose learner is the test: it gives answers, and counts questions."""

    def __init__(self) -> None:
        super().__init__(lambda: ("", keys.Keys(b"", b"", b"")), {}, "actor job 0")
        self.answer: bytes | None = None
        self.questions = 0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def tell(self, free: int, pause: float) -> None:
        self.answer = wire_module._STATUS.pack(0, free, 7, False, pause)

    def _call(self, method: str, request: object) -> bytes | None:
        self.questions += 1
        assert self.may_answer.wait(DEADLINE_SECONDS)
        return self.answer


def test_threads_of_a_job_keep_the_pause_that_one_was_told() -> None:
    link = Answers()
    link.tell(free=0, pause=2 * DEADLINE_SECONDS)
    for seconds in (0.0, 0.0, 0.01):
        assert link.status(seconds) == LearnerStatus(0, 7, False, 2 * DEADLINE_SECONDS)
    assert link.questions == 1
    link.tell(free=3, pause=0.0)
    link.put(marked(1, 1))  # Its answer counts as one.
    for _ in range(2):
        assert link.status() == LearnerStatus(3, 7, False)
    link.answer = None
    assert link.status() is link.status(0.01) is None, "there is no learner to spare"
    assert link.questions == 6


def test_threads_of_a_job_ask_one_at_a_time() -> None:
    link = Answers()
    link.tell(free=3, pause=0.0)
    assert link.status() == LearnerStatus(3, 7, False)
    link.may_answer.clear()
    asks = threading.Thread(target=link.status)
    asks.start()
    wait_until(lambda: link.questions == 2)
    for seconds in (0.0, 0.01):
        assert link.status(seconds) == LearnerStatus(0, 7, False), "nothing is free meanwhile"
    link.may_answer.set()
    asks.join(DEADLINE_SECONDS)
    assert link.questions == 2


def test_an_error_of_the_queue_reaches_the_learner(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, link = wire.open(), wire.link()
    port.publish(0, b"")
    monkeypatch.setattr(wire.queue, "put_leaves", lambda leaves: 1 / 0)
    wait_until(lambda: link.status() is not None)
    port.raise_error()
    assert link.put(marked(1, 1)) is None
    with pytest.raises(ZeroDivisionError):
        port.raise_error()


def test_differences_are_logged_or_refused_on_both_sides(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    wire.open().publish(0, b"")
    allowed = wire.link("actor job 3", may_differ={"--precision": "x"})
    wait_until(lambda: allowed.status() is not None)
    noticed = "--precision is None at the learner and x at actor job 3"
    assert [r.getMessage() for r in caplog.records] == [f"actor job 3: {noticed}", noticed]
    other = wire.link("actor job 7", handshake={"--network": "deep"})
    difference = "--network is shallow at the learner and deep at actor job 7"
    with pytest.raises(UserError, match=difference):
        other.status()
    assert caplog.records[-1].getMessage() == f"actor job 7 refused: {difference}"


def test_many_differences_make_a_short_line() -> None:
    own = {"--level_name": ",".join("abcd" * 20), **{f"task {i}": f"a{i}" for i in range(57)}}
    theirs = {"--level_name": ",".join("dcba" * 20), **{f"task {i}": f"b{i}" for i in range(57)}}
    line = handshake.differences(own, theirs, "actor job 7")
    assert line.startswith("--level_name is d,c,b,a,d"), line
    assert "task 0 is b0 at the learner and a0 at actor job 7; task 1 is" in line
    assert line.endswith("; and 55 more differ")
    assert len(line) < wire_module._MAX_LINE


def test_a_handshake_has_room_for_thousands_of_tasks(wire: Wire) -> None:
    tasks = {f"task {i}": f"contributed/levels/level_number_{i}" for i in range(5000)}
    wire.open(handshake=tasks).publish(0, b"")
    wait_until(lambda: wire.link(handshake=tasks).status() is not None)
    other = {**tasks, "task 4998": tasks["task 4999"], "task 4999": tasks["task 4998"]}
    with pytest.raises(UserError, match=r"task 4998 is .*_4998 at the learner and .*_4999 at"):
        wire.link(handshake=other).status()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ESTALE, "Stale file handle", "learner.json"),
        pytest.param(UserError("the keys cannot be read: Stale file handle"), id="keys"),
    ],
)
def test_files_that_cannot_be_read_for_a_moment_are_waited_for(
    wire: Wire, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    if isinstance(error, UserError):
        error.__cause__ = OSError(errno.ESTALE, "Stale file handle")
    wire.open().publish(0, b"")
    link = wire.link()
    locate = link._locate

    def fail() -> NoReturn:
        link._locate = locate
        raise error

    link._locate = fail
    assert link.status() is None
    assert [r.getMessage() for r in caplog.records] == [f"waiting for the learner: {error}"]
    wait_until(lambda: link.status() is not None)


@pytest.mark.parametrize("stranger", ["plain", "own certificate", "learner's"])
def test_nobody_without_the_runs_keys_gets_an_answer(
    wire: Wire, tmp_path: Path, stranger: str
) -> None:
    port = wire.open()
    port.publish(0, b"secret")
    assert wire.link().weights() == (0, b"secret")
    if stranger == "plain":
        channel = grpc.insecure_channel(port.address)
    else:
        keys.make(tmp_path / "other")
        run_keys = keys.load(wire.keys, keys.ACTOR)
        own = keys.load(tmp_path / "other", keys.ACTOR)
        if stranger == "learner's":  # Which proves no actor job, for all that it is the run's.
            own = keys.load(wire.keys, keys.LEARNER)
        channel = wire_module._open_channel(
            port.address, own._replace(authority=run_keys.authority)
        )
    with pytest.raises(grpc.RpcError) as refused:
        wire.call(channel, "Weights", wire_module._FETCH.pack(bytes(16), -1))
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_client_with_an_actors_keys_cannot_play_the_learner(wire: Wire) -> None:
    own = keys.load(wire.keys, keys.ACTOR)
    port = LearnerPort("127.0.0.1:0", SPEC, NUM_TASKS, RolloutQueue(SPEC, 8), HANDSHAKE, own)
    wire.ports.append(port)
    port.publish(0, b"weights of a stranger")
    assert wire.link().weights() is None
    wire.open().publish(0, b"weights")
    assert wire.link().weights() == (0, b"weights")


@pytest.mark.parametrize("method", ["Status", "Weights", "Put"])
def test_nothing_is_answered_before_a_handshake(wire: Wire, method: str) -> None:
    port = wire.open()
    port.publish(0, b"")
    channel = wire_module._open_channel(port.address, keys.load(wire.keys, keys.ACTOR))
    with pytest.raises(grpc.RpcError) as refused:
        wire.call(channel, method, bytes(100))
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_a_job_that_the_learner_does_not_understand_is_told_so(wire: Wire) -> None:
    wire.open().publish(0, b"")
    with pytest.raises(UserError, match=r"a long name.*run the same version of the program"):
        wait_until(lambda: wire.link("x" * 1000).status() is not None)


def test_a_number_that_is_not_finite_is_named_on_both_sides(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    wire.open().publish(0, b"")
    link, rollouts = wire.link(), marked(2, 1)
    rollouts.env_outputs.reward[1, 2] = -np.inf
    what = "put a number that is not finite: env_outputs.reward holds -inf"
    for _ in range(2):  # Another thread of the job is told the same.
        with pytest.raises(UserError, match=f"dropped this job, which {what}; mend the env"):
            wait_until(lambda: link.put(rollouts) is not None)
    assert [what in record.getMessage() for record in caplog.records] == [True]


def session(wire: Wire, channel: grpc.Channel) -> bytes:
    told = {"name": "client", "settings": HANDSHAKE, "may_differ": {}}
    answer = channel.unary_unary("/Learner/Handshake")(json.dumps(told).encode(), timeout=20)
    return bytes.fromhex(json.loads(answer)["session"])


def put(session: bytes, number: int, count: int, payload: bytes) -> bytes:
    return wire_module._PUT.pack(session, number, count) + payload


WHOLE = wire_module.to_bytes(marked(1, 1))
NAN = np.float32(np.nan).tobytes()
BAD_PUTS = {
    "truncated": lambda own: put(own, 1, 1, WHOLE[:-1]),
    "too long": lambda own: put(own, 1, 1, WHOLE + b"0"),
    "no rollouts": lambda own: put(own, 1, 0, b""),
    "too many rollouts": lambda own: put(own, 1, 9, 9 * WHOLE),
    "no header": lambda own: own,
    "a task that is not": lambda own: put(own, 1, 1, b"\x07" + WHOLE[1:]),
    "not a number": lambda own: put(own, 1, 1, WHOLE[:4] + NAN + WHOLE[8:]),
    "no flags": lambda own: put(
        own, 1, 1, wire_module.to_bytes(marked(1, 1)).replace(b"\1", b"\2")
    ),
}


@pytest.mark.parametrize("bad", BAD_PUTS)
def test_a_client_that_sends_what_cannot_be_is_dropped_with_one_line(
    wire: Wire, caplog: pytest.LogCaptureFixture, bad: str
) -> None:
    port = wire.open()
    port.publish(0, b"")
    channel = wire_module._open_channel(port.address, keys.load(wire.keys, keys.ACTOR))
    code = grpc.StatusCode.PERMISSION_DENIED
    if bad == "not a number":
        code = grpc.StatusCode.INVALID_ARGUMENT
    with channel:
        own = session(wire, channel)
        call = channel.unary_unary("/Learner/Put")
        for request in (BAD_PUTS[bad](own), BAD_PUTS[bad](own), put(own, 2, 1, WHOLE)):
            with pytest.raises(grpc.RpcError) as refused:
                call(request, timeout=20)
            assert refused.value.code() == code
        assert session(wire, channel) != own, "a later client may have the same port"
        call(put(session(wire, channel), 1, 1, WHOLE), timeout=20)
    assert sum("dropped a client" in r.getMessage() for r in caplog.records) == 1
    assert wire.queue.free() == 7


def test_a_request_that_is_sent_twice_is_learned_from_once(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    port = wire.open()
    port.publish(0, b"")
    with wire_module._open_channel(port.address, keys.load(wire.keys, keys.ACTOR)) as channel:
        request = put(session(wire, channel), 1, 1, WHOLE)
        call = channel.unary_unary("/Learner/Put")
        call(request, timeout=20)
        with pytest.raises(grpc.RpcError):
            call(request, timeout=20)
    assert wire.queue.free() == 7
    assert "request 1 again" in caplog.text


def test_threads_share_a_link(wire: Wire) -> None:
    wire.open().publish(0, b"")
    link = wire.link()
    wait_until(lambda: link.status() is not None)
    took = []
    threads = [
        threading.Thread(target=lambda: took.append(link.put(marked(1, 1)))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [taken for taken, _ in took] == [1] * 8
    assert wire.queue.free() == 0


def test_a_port_that_is_taken_is_refused(wire: Wire) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(UserError, match=r"port .* of --learner_address"):
            wire.open(f"127.0.0.1:{other.getsockname()[1]}")


@pytest.mark.parametrize(
    ("host", "reached"), [("127.0.0.1", False), ("127.0.0.3", False), ("learner-7", True)]
)
def test_a_loopback_address_is_open_to_its_own_machine_only(
    wire: Wire, host: str, reached: bool
) -> None:
    port = wire.open(f"{host}:0")
    port.publish(0, b"")
    # Like any other interface's, this address is not the one that was asked for.
    with socket.socket() as other:
        number = int(port.address.rpartition(":")[2])
        assert (other.connect_ex(("127.0.0.2", number)) == 0) == reached

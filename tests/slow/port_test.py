"""A learner's port under strangers, under rubbish, and under a thousand clients at once."""

import asyncio
import contextlib
import json
import os
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.distributed import handshake, keys
from scalable_agent_popart.distributed.learner_pb2 import HandshakeRequest, PutRequest
from scalable_agent_popart.distributed.link import learner_method, open_channel
from scalable_agent_popart.distributed.port import _MAX_HANDSHAKE_BYTES
from scalable_agent_popart.runs.config import Config
from tests.fakes.programs import (
    DEADLINE_SECONDS,
    Programs,
    free_port,
    logged_frames,
    run_python,
    wait_until,
)

_NOBODY = 65534
_NUM_MESSAGES, _MESSAGES_PER_CONNECTION = 10_000, 10
_FLAGS = {"level_name": "catch5", "use_popart": True, "num_actors": 10, "precision": "float32"}
_NUM_CLIENTS, _ROLLOUT_SECONDS, _RESTART_SECONDS = 1000, 10.0, 60.0


class Run:
    """A learner and an actor job as processes, whose output is kept in a file."""

    def __init__(self, programs: Programs, directory: Path):
        self._programs = programs
        self.directory = directory / "run"
        self.log = directory / "learner.log"
        self.address = f"127.0.0.1:{free_port()}"
        config = Config.from_flags({**_FLAGS, "learner_address": self.address})
        self.spec = factory.make_rollout_spec(config)
        agent = factory.make_agent(config, self.spec)
        self.handshake = handshake.handshake(config, agent, self.spec)

    def start(self, **flags: Any) -> subprocess.Popen[str]:
        given = {**_FLAGS, "logdir": self.directory, "log_seconds": 0.5, "checkpoint_seconds": 5}
        with open(self.log, "ab") as log:
            return self._programs.run(log, **given, **flags)

    def start_learner(self) -> subprocess.Popen[str]:
        return self.start(learner_address=self.address, total_environment_frames=10**9)

    def frames(self) -> int:
        return logged_frames(self.directory)

    def actor_keys(self) -> keys.Keys:
        return keys.load(self.directory / "keys", keys.ACTOR)


@pytest.fixture
def run(programs: Programs, tmp_path: Path) -> Run:
    return Run(programs, tmp_path)


def memory_mib(process: int) -> float:
    return psutil.Process(process).memory_info().rss / 2**20


def processor_seconds(process: int) -> float:
    return sum(psutil.Process(process).cpu_times()[:2])  # These are the user's and the system's.


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_without_keys_gets_no_answer(run: Run) -> None:
    run.start_learner()
    run.start(job_name="actor", task=0)
    wait_until(lambda: run.frames() > 0)
    for path in (run.directory.parent, *run.directory.parent.parents[:2]):
        path.chmod(0o755)  # Only the keys' own rights keep the stranger out.
    given = (run.address, str(run.directory), str(_NOBODY))
    stranger = run_python("-m", "tests.fakes.stranger", *given)
    assert stranger.returncode == 0, stranger.stderr
    answers = json.loads(stranger.stdout)
    assert answers.pop("keys") == answers.pop("keys/actor.key") == "PermissionError"
    assert answers.pop("TensorFlow") in {"UnavailableError", "DeadlineExceededError"}
    assert set(answers.values()) == {"UNAVAILABLE"}
    before = run.frames()
    wait_until(lambda: run.frames() > before)


class Fuzzer:
    """Makes messages that are wrong in all ways, from a seed."""

    def __init__(self, run: Run, seed: int):
        self._random = random.Random(seed)
        rollout = tf.nest.map_structure(
            lambda leaf: np.zeros((1, *leaf.shape), leaf.dtype.as_numpy_dtype), run.spec
        )
        self.leaves = [leaf.tobytes() for leaf in tf.nest.flatten(rollout)]
        largest = 8 * sum(map(len, self.leaves))
        self._too_much = bytes(3 * max(largest, _MAX_HANDSHAKE_BYTES))
        handshake = HandshakeRequest(name="client", settings=run.handshake)
        self.handshake = handshake.SerializeToString()

    def message(self, session: bytes) -> tuple[str, bytes, bytes]:
        """Returns a method, what to call it with first, if anything, and what it must refuse."""
        kind = self._random.choice(
            ("noise", "cut", "long", "count", "field", "replay", "stranger", "huge", "unreadable")
        )
        number = 1 + self._random.randrange(2**40)
        put = PutRequest(session=session, number=number, count=1, turn=1, leaves=self.leaves)
        leaf = self._random.randrange(len(self.leaves))
        before = b""
        if kind == "noise":
            method = self._random.choice(("Status", "Put", "Weights", "Handshake"))
            # No field has the number 0, so that it is never a message by chance.
            return method, b"", b"\0" + self._random.randbytes(self._random.randrange(10_000))
        if kind == "unreadable":
            return "Put", b"", put.SerializeToString()[:-1]
        if kind == "cut":
            put.leaves[leaf] = put.leaves[leaf][:-1]
        elif kind == "long":
            put.leaves.append(b"x")
        elif kind == "count":
            put.count = self._random.choice((0, 2, 9, 2**32 - 1))
        elif kind == "field":  # The first leaf is the task.
            task = self._random.choice((5, -1, 2**31 - 1))
            put.leaves[0] = task.to_bytes(4, "little", signed=True)
        elif kind == "replay":
            before = put.SerializeToString()
        elif kind == "stranger":
            put.session = self._random.randbytes(16)
        elif kind == "huge":
            put.leaves[leaf] += self._too_much
        return "Put", before, put.SerializeToString()


def test_rubbish_with_keys_costs_a_line_per_client(run: Run) -> None:
    learner = run.start_learner()
    run.start(job_name="actor", task=0)
    wait_until(lambda: run.frames() > 0)
    fuzzer, actor_keys = Fuzzer(run, seed=0), run.actor_keys()
    codes = dict.fromkeys(("PERMISSION_DENIED", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED"), 0)
    memory = []
    channel = open_channel(run.address, actor_keys)
    for message in range(_NUM_MESSAGES):
        if message % _MESSAGES_PER_CONNECTION == 0:
            channel.close()
            channel = open_channel(run.address, actor_keys)
        greet = learner_method(channel, "Handshake")
        method, before, request = fuzzer.message(greet(fuzzer.handshake, timeout=60).session)
        call = learner_method(channel, method)
        if before:
            call(before, timeout=60)
        with pytest.raises(grpc.RpcError) as refused:
            call(request, timeout=60)
        codes[refused.value.code().name] += 1
        if message % 100 == 0:
            memory.append(memory_mib(learner.pid))
    channel.close()
    frames, tenth = run.frames(), len(memory) // 10
    # Training takes and returns some memory all the time, so the least of a while is compared.
    warm = min(memory[tenth : 2 * tenth])
    grown = min(memory[-tenth:]) - warm
    print(f"{codes}, memory {warm:.0f} MiB and {grown:+.1f}")
    assert all(codes.values())
    assert run.log.read_text().count("dropped a client at") == codes["PERMISSION_DENIED"]
    assert grown < 0.02 * warm
    wait_until(lambda: run.frames() > frames)
    assert learner.poll() is None


async def play(run: Run, fuzzer: Fuzzer, sent: list[float]) -> None:
    """Sends a rollout every ten seconds, and finds a learner that is back.

    Adds the times at which rollouts were taken to `sent`.
    """
    shows = run.actor_keys()
    credentials = grpc.ssl_channel_credentials(
        shows.authority, shows.private_key, shows.certificate
    )
    options = (("grpc.ssl_target_name_override", keys.LEARNER),)
    pause = 0.2
    await asyncio.sleep(random.uniform(0, _ROLLOUT_SECONDS))
    while True:
        with contextlib.suppress(grpc.RpcError):
            async with grpc.aio.secure_channel(run.address, credentials, options) as channel:
                answer = await learner_method(channel, "Handshake")(fuzzer.handshake, timeout=20)
                request = PutRequest(session=answer.session, count=1, turn=1, leaves=fuzzer.leaves)
                put = learner_method(channel, "Put")
                pause = 0.2
                while True:
                    request.number += 1
                    if (await put(request.SerializeToString(), timeout=20)).taken:
                        sent.append(time.monotonic())
                        await asyncio.sleep(_ROLLOUT_SECONDS)
                    else:
                        await asyncio.sleep(random.uniform(0.05, 0.15))
        await asyncio.sleep(pause * random.uniform(0.5, 1))
        pause = min(2 * pause, 5.0)


def test_a_thousand_clients_are_served_and_find_a_learner_again(run: Run) -> None:
    times: list[list[float]] = [[] for _ in range(_NUM_CLIENTS)]

    async def wait_for_all(start: float, seconds: float) -> float:
        while not all(sent and sent[-1] >= start for sent in times):
            assert time.monotonic() < start + seconds, "a client was starved"
            await asyncio.sleep(0.2)
        return time.monotonic() - start

    async def measure() -> None:
        learner = run.start_learner()
        wait_until(lambda: (run.directory / "learner.json").exists())
        before, fuzzer = memory_mib(learner.pid), Fuzzer(run, seed=0)
        tasks = [asyncio.create_task(play(run, fuzzer, sent)) for sent in times]
        print(f"all connected and sent after {await wait_for_all(time.monotonic(), 120):.1f} s")
        begin, spent = time.monotonic(), processor_seconds(learner.pid)
        await asyncio.sleep(3 * _ROLLOUT_SECONDS)
        share = (processor_seconds(learner.pid) - spent) / (time.monotonic() - begin)
        least = min(sum(at >= begin for at in sent) for sent in times)
        grown = memory_mib(learner.pid) - before
        print(f"{share:.2f} cores, {grown:+.0f} MiB, at least {least} rollouts of each in 30 s")
        assert least >= 2
        learner.kill()
        learner.wait()
        killed = time.monotonic()
        run.start_learner()
        again = await wait_for_all(killed, _RESTART_SECONDS + DEADLINE_SECONDS)
        print(f"all sent again {again:.1f} s after the learner was killed")
        assert again < _RESTART_SECONDS
        for task in tasks:
            task.cancel()

    asyncio.run(measure())

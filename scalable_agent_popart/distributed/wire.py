"""The service of `learner.proto`, and rollouts and weights as its messages hold them."""

import functools
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tree
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from environments import NUM_WORD_BUCKETS
from scalable_agent_popart.distributed import learner_pb2 as pb
from scalable_agent_popart.rollouts import Rollout

_SERVICE = pb.DESCRIPTOR.services_by_name["Learner"]
SERVICE = _SERVICE.full_name
# The request and the reply of each method.
METHODS = {
    method.name: (GetMessageClass(method.input_type), GetMessageClass(method.output_type))
    for method in _SERVICE.methods
}

_MAX_ROLLOUTS_PER_CALL, _USUAL_CALL_BYTES = 8, 4 * 2**20
_MAX_VERSION, _MAX_TURN = 2**48, 2**31

SESSION_BYTES = 16
# A `PutRequest` has so many bytes for its session, and so many before its leaves.
PUT_SESSION_BYTES = pb.PutRequest(session=bytes(SESSION_BYTES)).ByteSize()
_PUT_HEAD_BYTES = pb.PutRequest(session=bytes(SESSION_BYTES), number=1, count=1, turn=1).ByteSize()


def num_bytes(spec: Rollout) -> int:
    """Counts the bytes of one environment's rollout."""
    return sum(leaf.shape.num_elements() * leaf.dtype.size for leaf in tf.nest.flatten(spec))


def max_rollouts_per_call(spec: Rollout) -> int:
    """Returns how many rollouts one request may hold."""
    return max(1, min(_MAX_ROLLOUTS_PER_CALL, _USUAL_CALL_BYTES // num_bytes(spec)))


def serialize(request: Message, leaves: Sequence[np.ndarray] = ()) -> bytes:
    """Serializes a request, which gets the leaves `[M, ...]` of rollouts if it is a `PutRequest`.

    It copies the leaves once, and `RolloutReader` reads them where they are. Messages of
    `learner_pb2` would copy them four more times.
    """
    parts: list[bytes | memoryview] = [request.SerializeToString()]
    for leaf in map(np.ascontiguousarray, leaves):
        parts += [_start(leaf.nbytes), leaf.reshape(-1).view(np.uint8).data]
    return b"".join(parts)


def read_put_head(data: bytes) -> pb.PutRequest:
    """Reads a `PutRequest` up to its leaves.

    Raises ValueError if these begin elsewhere, or if no environment can have had so many turns.
    """
    try:
        head = pb.PutRequest.FromString(data[:_PUT_HEAD_BYTES])
    except DecodeError as error:
        raise ValueError("put rollouts behind another head") from error
    if head.turn > _MAX_TURN:
        raise ValueError(f"put rollouts of the turn {head.turn}")
    return head


@functools.cache
def _start(num_bytes: int) -> bytes:
    """Returns what protobuf writes before a leaf of so many bytes: the field's key and the size."""
    message = pb.PutRequest(leaves=[bytes(num_bytes)]).SerializeToString()
    return message[: len(message) - num_bytes]


class RolloutReader:
    """Reads rollouts from bytes, and refuses what no actor of the run can have sent."""

    def __init__(self, spec: Rollout, num_tasks: int):
        """Takes the `spec` of one rollout, and the number of tasks."""
        ends = {  # Each of these leaves holds numbers from 0 up to, but without, its end.
            "task_id": num_tasks,
            "env_outputs.observation.instruction": NUM_WORD_BUCKETS + 1,
            "agent_outputs.action": spec.agent_outputs.policy_logits.shape[-1],
            "policy_version": _MAX_VERSION,
        }
        self._leaves = []
        for path, leaf in tree.flatten_with_path(spec):
            name, dtype = ".".join(map(str, path)), np.dtype(leaf.dtype.as_numpy_dtype)
            end = 2 if dtype.kind == "b" else ends.get(name)  # No bool has a byte above 1.
            # Read without a sign, a number below 0 is a large one.
            raw = dtype if end is None else np.dtype(f"u{dtype.itemsize}")
            self._leaves.append((name, dtype, raw, tuple(leaf.shape), end))
        self._max_count = max_rollouts_per_call(spec)
        self.max_bytes = self._max_count * num_bytes(spec)

    def read(self, data: bytes, count: int) -> list[np.ndarray]:
        """Returns the leaves of `count` rollouts, `[count, ...]`, from the bytes of a `PutRequest`.

        Raises ValueError if no actor of the run can have sent them. Raises FloatingPointError if a
        number is not finite, which an environment may have returned as its reward.
        """
        if not 1 <= count <= self._max_count:
            raise ValueError(f"put {count} rollouts at once")
        leaves, position = [], _PUT_HEAD_BYTES
        for name, dtype, raw_dtype, shape, end in self._leaves:
            size = count * math.prod(shape)
            start = _start(num_bytes := size * dtype.itemsize)
            begin, position = position, position + len(start) + num_bytes
            if not data.startswith(start, begin) or len(data) < position:
                raise ValueError(f"put {count} rollouts without {num_bytes} bytes of {name}")
            raw = np.frombuffer(data, raw_dtype, size, begin + len(start))
            array = raw.view(dtype)
            if end is not None and raw.max(initial=0) >= end:
                wrong = raw[raw >= end].view(f"i{raw.itemsize}")[0]
                raise ValueError(f"put {name} of {wrong}, which is not in [0, {end})")
            if dtype.kind == "f" and not np.isfinite(array).all():
                wrong = array[~np.isfinite(array)][0]
                raise FloatingPointError(f"put a number that is not finite: {name} holds {wrong}")
            leaves.append(array.reshape(count, *shape))
        if len(data) > position:
            raise ValueError(f"put {count} rollouts and {len(data) - position} more bytes")
        return leaves

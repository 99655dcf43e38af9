"""The instruction encoder against slow NumPy, and within the agent."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from environments import MAX_WORDS, NUM_WORD_BUCKETS, ArraySpec, Observation
from scalable_agent_popart import rollouts
from scalable_agent_popart.agent.agent import Agent
from scalable_agent_popart.agent.networks import InstructionEncoder

NUM_ACTIONS = 3
SPEC = Observation(ArraySpec((10, 5, 3), np.uint8), ArraySpec((MAX_WORDS,), np.int32))


def words(*lengths: int, seed: int = 0) -> np.ndarray:
    """Instructions of so many words, `[N, MAX_WORDS]`."""
    generator = np.random.default_rng(seed)
    buckets = generator.integers(1, NUM_WORD_BUCKETS + 1, (len(lengths), MAX_WORDS))
    present = np.arange(MAX_WORDS) < np.array(lengths)[:, np.newaxis]
    return np.where(present, buckets, 0).astype(np.int32)


def oracle(encoder: InstructionEncoder, instruction: np.ndarray) -> np.ndarray:
    """One instruction `[MAX_WORDS]`, word by word, in float64; `[64]`."""
    values = {v.name.split("/", 1)[1]: v.numpy().astype(np.float64) for v in encoder.variables}
    (embeddings,) = (v for name, v in values.items() if "embed" in name)
    (inputs,) = (v for name, v in values.items() if name.endswith("w_i:0"))
    (hidden,) = (v for name, v in values.items() if name.endswith("w_h:0"))
    (bias,) = (v for name, v in values.items() if name.endswith("lstm/b:0"))

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    h, c = np.zeros(64), np.zeros(64)
    for word in instruction[instruction > 0]:
        gates = embeddings[word] @ inputs + h @ hidden + bias
        i, f, g, o = np.split(gates, 4)
        # Sonnet's forget gate has its bias of one among the variables.
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
    return h


def test_sizes_are_the_papers() -> None:
    shapes = {tuple(v.shape) for v in InstructionEncoder().trainable_variables}
    assert shapes == {(NUM_WORD_BUCKETS + 1, 20), (20, 4 * 64), (64, 4 * 64), (4 * 64,)}


@pytest.mark.parametrize("compiled", [False, True])
def test_encodes_each_instruction_to_its_true_length(compiled: bool) -> None:
    encoder = InstructionEncoder()
    instructions = words(5, 1, 0, 12, MAX_WORDS)
    call = tf.function(encoder) if compiled else encoder
    encoded = call(tf.constant(instructions)).numpy()
    assert encoded.shape == (5, 64)
    for row, instruction in zip(encoded, instructions, strict=True):
        np.testing.assert_allclose(row, oracle(encoder, instruction), atol=1e-5)
    assert not np.any(encoded[2]), "no words"


def test_no_words_at_all_are_encoded_as_zeros() -> None:
    encoder = tf.function(InstructionEncoder())
    assert not np.any(encoder(tf.constant(words(0, 0))).numpy())


def test_compiled_by_xla_it_encodes_and_learns_the_same() -> None:
    encoder = InstructionEncoder()
    instructions = tf.constant(words(3, 0, 9))

    def learn() -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            encoded = encoder(instructions)
        return encoded, tape.gradient(encoded, encoder.trainable_variables)

    plain, compiled = learn(), tf.function(learn, jit_compile=True)()
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), plain, compiled)


def test_what_stands_beside_an_instruction_does_not_change_it() -> None:
    encoder = InstructionEncoder()
    both = encoder(tf.constant(words(3, 40)))
    np.testing.assert_allclose(both[:1], encoder(tf.constant(words(3, 40)[:1])), atol=1e-6)


def test_gradients_reach_the_words_that_were_read_and_no_others() -> None:
    encoder = InstructionEncoder()
    instructions = words(4, 0, 2)

    @tf.function
    def gradients(inputs: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(encoder(inputs))
        return tape.gradient(loss, encoder.trainable_variables)

    by_shape = {tuple(g.shape): g.numpy() for g in gradients(tf.constant(instructions))}
    embedding = by_shape.pop((NUM_WORD_BUCKETS + 1, 20))
    read = sorted(set(instructions[instructions > 0].tolist()))
    np.testing.assert_array_equal(np.flatnonzero(np.any(embedding != 0, axis=1)), read)
    assert all(np.any(g != 0) for g in by_shape.values())


def test_words_may_stand_in_any_number_of_graphs() -> None:
    """One graph serves every number of environments that are ready."""
    encoder = InstructionEncoder()
    call = tf.function(encoder, input_signature=[tf.TensorSpec((None, MAX_WORDS), tf.int32)])
    for lengths in ((1,), (3, 0, 7)):
        instructions = words(*lengths)
        for row, one in zip(call(tf.constant(instructions)), instructions, strict=True):
            np.testing.assert_allclose(row, oracle(encoder, one), atol=1e-5)


def make_agent() -> tuple[Agent, rollouts.Rollout]:
    agent = Agent(NUM_ACTIONS, "shallow", use_lstm=True, reads_instructions=True)
    return agent, rollouts.rollout_spec(SPEC, agent.initial_state(1), NUM_ACTIONS, 3)


def batch(spec: rollouts.Rollout, instruction: np.ndarray) -> rollouts.Rollout:
    """A batch `[4, 2, ...]` of black images with these instructions `[4, 2, MAX_WORDS]`."""
    zeros = tf.nest.map_structure(
        lambda leaf: tf.zeros(leaf.shape, leaf.dtype), rollouts.batch_spec(spec, 2)
    )
    observation = zeros.env_outputs.observation._replace(instruction=tf.constant(instruction))
    return zeros._replace(env_outputs=zeros.env_outputs._replace(observation=observation))


def test_the_agent_reads_the_instruction_of_each_step() -> None:
    agent, spec = make_agent()
    silent = np.zeros((4, 2, MAX_WORDS), np.int32)
    spoken = silent.copy()
    spoken[2, 1] = words(6)[0]
    logits = []
    for instruction in (silent, spoken):
        given = batch(spec, instruction)
        unroll = agent.unroll(given.agent_outputs.action, given.env_outputs, given.agent_state)
        assert unroll.features.shape == (4, 2, 256)
        logits.append(unroll.policy_logits.numpy())
    differs = np.any(logits[0] != logits[1], axis=-1)
    expected = np.zeros((4, 2), bool)
    expected[2:, 1] = True  # The LSTM remembers it.
    np.testing.assert_array_equal(differs, expected)


def test_an_agent_without_instructions_has_no_encoder() -> None:
    agent = Agent(NUM_ACTIONS, "shallow", use_lstm=True)
    assert not [m for m in agent.submodules if isinstance(m, (InstructionEncoder, snt.Embed))]

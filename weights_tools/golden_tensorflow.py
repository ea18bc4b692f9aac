"""Golden V2 checkpoints of TensorFlow: language models of its BasicLSTMCell.

A case is a directory: model.ckpt.index and model.ckpt.data-*, as tf.train.Saver writes them with what
an optimiser stores with the weights, vocab.json, and golden.safetensors with tokens.s I32 [T] and
logits.s F32 [T, V] of the session that saved them. Weights are fp32, and so is what TensorFlow computes.
Run: TF_USE_LEGACY_KERAS=1 python -m weights_tools.golden_tensorflow OUT, with tensorflow 2.21 and
tf_keras 2.21, which has the cells.
"""

import dataclasses
import json
import pathlib
import shutil
import string
import sys

import numpy as np

from weights_tools import golden_cases as cases
from weights_tools import safetensors_io as st


@dataclasses.dataclass(frozen=True)
class Case:
    vocab: int
    hidden: int
    layers: int
    forget_bias: float
    embedding: int = 0  # 0: inputs are one-hot
    seed: int = 0


CASES = {
    "embedding": Case(vocab=41, hidden=24, layers=2, forget_bias=1.0, embedding=16, seed=1),
    "one_hot": Case(vocab=37, hidden=20, layers=1, forget_bias=0.0, seed=2),
}


def logits_of(tf, case, tokens):
    """tokens [T] -> logits [T, V], with the names that character models of this kind have."""

    def weight(name, *shape, gain=1.0):
        scale = gain / np.sqrt(shape[0]) if len(shape) > 1 else 0.5
        return tf.get_variable(name, shape, initializer=tf.random_normal_initializer(0, scale))

    with tf.variable_scope("rnnlm"):
        w = weight("softmax_w", case.hidden, case.vocab, gain=6.0)
        b = weight("softmax_b", case.vocab)
    if case.embedding:
        inputs = tf.nn.embedding_lookup(weight("embedding", case.vocab, case.embedding), tokens)
    else:
        inputs = tf.one_hot(tokens, case.vocab)
    cells = [
        tf.nn.rnn_cell.BasicLSTMCell(case.hidden, forget_bias=case.forget_bias)
        for _ in range(case.layers)
    ]
    # One cell without a MultiRNNCell has no number in its name.
    cell = tf.nn.rnn_cell.MultiRNNCell(cells) if case.layers > 1 else cells[0]
    with tf.variable_scope("rnnlm", initializer=tf.random_normal_initializer(0, 0.4)):
        out, _ = tf.nn.dynamic_rnn(cell, inputs[None], dtype=tf.float32)
    return tf.matmul(out[0], w) + b


def make(tf, name, directory):
    case = CASES[name]
    directory.mkdir(parents=True, exist_ok=True)
    golden = {}
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(case.seed)
        tokens = tf.placeholder(tf.int32, [None])
        logits = logits_of(tf, case, tokens)
        tf.get_variable("Variable", [], initializer=tf.zeros_initializer(), trainable=False)
        step = tf.train.get_or_create_global_step()
        train = tf.train.AdamOptimizer(0.002).minimize(tf.reduce_mean(logits**2), global_step=step)
        session.run(tf.global_variables_initializer())
        # Biases begin as zeros, so they are given values.
        rng = np.random.default_rng(case.seed)
        for variable in tf.trainable_variables():
            if variable.name.endswith("bias:0"):
                variable.load(rng.standard_normal(variable.shape).astype(np.float32), session)
        sequences = cases.sequences(case.vocab, case.seed)
        session.run(train, {tokens: sequences[0]})
        for s, ids in enumerate(sequences):
            golden[f"tokens.{s}"] = st.tensor(ids)
            golden[f"logits.{s}"] = st.tensor(session.run(logits, {tokens: ids}), "F32")
        tf.train.Saver().save(session, str(directory / "model.ckpt"), write_meta_graph=False)
    st.write(directory / "golden.safetensors", golden)
    characters = (string.ascii_letters + string.punctuation)[: case.vocab]
    (directory / "vocab.json").write_text(json.dumps({c: i for i, c in enumerate(characters)}) + "\n")
    (directory / "checkpoint").unlink()  # says where it was made


def main(argv):
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()
    tf.disable_resource_variables()
    for name in cases.chosen(CASES, argv[1:]):
        shutil.rmtree(pathlib.Path(argv[0]) / name, ignore_errors=True)
        make(tf, name, pathlib.Path(argv[0]) / name)


if __name__ == "__main__":
    main(sys.argv[1:])

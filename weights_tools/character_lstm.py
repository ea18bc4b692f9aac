"""Character LSTMs of TensorFlow's BasicLSTMCell as raw fp32 arrays with manifest.json and vocab.json."""

import json

import numpy as np

from weights_tools import safetensors_io as st


def read(src):
    """-> config.json, name -> Tensor, character -> id."""
    arrays = read_arrays(src)
    hidden = arrays["rnnlm/softmax_w"].shape[0]
    used = {"Variable", "embedding", "rnnlm/softmax_w", "rnnlm/softmax_b"}
    tensors = {
        "embeddings.weight": arrays["embedding"],
        "lm_head.weight": arrays["rnnlm/softmax_w"].T,
        "lm_head.bias": arrays["rnnlm/softmax_b"],
    }
    layers = 0
    while found := [n for n in arrays if f"/cell_{layers}/basic_lstm_cell/" in n]:
        kernel = next(arrays[n] for n in found if n.endswith(("kernel", "weights")))
        bias = next(arrays[n] for n in found if n.endswith(("bias", "biases")))
        for name, array in cell(kernel, bias).items():
            tensors[f"layers.{layers}.{name}"] = array
        used.update(found)
        layers += 1
    unknown = sorted(set(arrays) - used)
    if unknown or layers == 0:
        raise ValueError(
            f"{src}: wanted BasicLSTM cells, an embedding and a softmax, found {unknown or sorted(arrays)}"
        )
    print(f"dropped Variable; {layers} cells: gates i j f o to i f g o, forget bias + 1")
    values = {
        "model_type": "rnn",
        "cell": "lstm",
        "block": "plain",
        "vocab_size": arrays["embedding"].shape[0],
        "hidden_size": hidden,
        "embedding_size": arrays["embedding"].shape[1],
        "num_heads": 1,
        "num_hidden_layers": layers,
        "use_bias": True,
        "head_bias": True,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    characters = json.loads((src / "vocab.json").read_text())
    odd = {text: i for text, i in characters.items() if len(text) != 1}
    if odd:
        print(f"vocab.json: {odd} are no single characters; the model writes but never reads them")
    return values, {n: st.tensor(a, "F32") for n, a in tensors.items()}, characters


def read_arrays(src):
    arrays = {}
    for name, entry in json.loads((src / "manifest.json").read_text()).items():
        array = np.fromfile(src / entry["filename"], "<f4")
        if array.size != int(np.prod(entry["shape"], dtype=np.int64)):
            raise ValueError(
                f"{src / entry['filename']}: wanted shape {entry['shape']}, found {array.size} values"
            )
        arrays[name] = array.reshape(entry["shape"])
    return arrays


def cell(kernel, bias):
    """TensorFlow's kernel [in + hidden, 4 hidden] with columns i, j, f, o as PyTorch's rows i, f, g, o."""
    i, j, f, o = np.split(kernel, 4, 1)
    bi, bj, bf, bo = np.split(bias, 4)
    gates = np.concatenate([i, f, j, o], 1).T
    inputs = gates.shape[1] - gates.shape[0] // 4
    return {
        "weight_ih": gates[:, :inputs],
        "weight_hh": gates[:, inputs:],
        # The cell adds 1 to its forget gate.
        "bias_ih": np.concatenate([bi, bf + np.float32(1), bj, bo]),
        "bias_hh": np.zeros_like(bias),
    }

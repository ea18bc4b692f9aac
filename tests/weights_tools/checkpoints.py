"""Small checkpoints for the tests of convert."""

import json

import numpy as np

import torch_writer
from weights_tools import safetensors_io as st


def numbers(family, config, dtype="F32", seed=0):
    rng = np.random.default_rng(seed)
    shapes = family.tensor_shapes(config)
    return {n: st.tensor(rng.standard_normal(s, np.float32), dtype) for n, s in shapes.items()}


def same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype, name
        assert np.array_equal(found[name].array, tensor.array), name


def write_config(directory, values):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(values))


def original_names(tensors):
    return {n.replace("backbone.embeddings.", "backbone.embedding."): t for n, t in tensors.items()}


def sharded_bin(directory, tensors, files):
    names = sorted(tensors)
    weight_map = {n: f"pytorch_model-{i % files + 1:05}-of-{files:05}.bin" for i, n in enumerate(names)}
    for file in set(weight_map.values()):
        torch_writer.save(directory / file, {n: tensors[n] for n in names if weight_map[n] == file})
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps(index))

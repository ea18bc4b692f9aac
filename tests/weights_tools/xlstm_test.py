import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

from conftest import ROOT
from weights_tools import __main__ as cli
from weights_tools import inspect_checkpoint
from weights_tools import safetensors_io as st
from weights_tools.families import xlstm

XLSTM_7B = xlstm.Config(hidden_size=4096, num_blocks=32, num_heads=8, vocab_size=50304)


def test_sizes_of_xlstm_7b():
    assert (XLSTM_7B.qk_dim, XLSTM_7B.v_dim, XLSTM_7B.ffn_dim) == (2048, 4096, 10944)
    assert (XLSTM_7B.qk_head, XLSTM_7B.v_head) == (256, 512)
    assert xlstm.parameters(XLSTM_7B) == 6_865_424_896
    assert xlstm.state_bytes(XLSTM_7B) == 134_480_896


@pytest.mark.parametrize(
    "x, multiple, wanted", [(10924.032, 64, 10944), (64.0032, 32, 64), (24, 16, 32), (64, 64, 64)]
)
def test_round_up_as_upstream(x, multiple, wanted):
    assert xlstm.round_up(x, multiple) == wanted


@pytest.mark.parametrize("width", [96, 160, 320])
def test_widths_of_queries_and_values_are_not_rounded_up(width):
    """transformers' xLSTMLayer and the package's mLSTMLayer: int(hidden_size * factor)."""
    values = {"hidden_size": width, "num_blocks": 1, "num_heads": 4, "vocab_size": 11}
    values["mlstm_round_up_to_multiple_of"] = 64
    config = xlstm.config_from_dict(values)
    assert (config.qk_dim, config.v_dim) == (width // 2, width)
    assert xlstm.config_from_dict({**values, "qk_dim_factor": 0.4, "num_heads": 2}).qk_dim == int(width * 0.4)
    assert config.ffn_dim % 64 == 0


def test_names_and_shapes_single():
    shapes = xlstm.tensor_shapes(XLSTM_7B)
    assert len(shapes) == 3 + 32 * 15
    block = "backbone.blocks.31."
    wanted = {
        "backbone.embeddings.weight": (50304, 4096),
        "backbone.out_norm.weight": (4096,),
        "lm_head.weight": (50304, 4096),
        block + "norm_mlstm.weight": (4096,),
        block + "mlstm_layer.q.weight": (2048, 4096),
        block + "mlstm_layer.k.weight": (2048, 4096),
        block + "mlstm_layer.v.weight": (4096, 4096),
        block + "mlstm_layer.ogate_preact.weight": (4096, 4096),
        block + "mlstm_layer.igate_preact.weight": (8, 4096),
        block + "mlstm_layer.igate_preact.bias": (8,),
        block + "mlstm_layer.fgate_preact.weight": (8, 4096),
        block + "mlstm_layer.fgate_preact.bias": (8,),
        block + "mlstm_layer.multihead_norm.weight": (4096,),
        block + "mlstm_layer.out_proj.weight": (4096, 4096),
        block + "norm_ffn.weight": (4096,),
        block + "ffn.proj_up_gate.weight": (10944, 4096),
        block + "ffn.proj_up.weight": (10944, 4096),
        block + "ffn.proj_down.weight": (4096, 10944),
    }
    for name, shape in wanted.items():
        assert shapes[name] == shape, name


def test_names_and_shapes_fused():
    config = dataclasses.replace(XLSTM_7B, weight_mode="fused")
    shapes = xlstm.tensor_shapes(config)
    assert len(shapes) == 3 + 32 * 9
    assert shapes["backbone.blocks.0.mlstm_layer.qkv_opreact.weight"] == (12288, 4096)
    assert shapes["backbone.blocks.0.mlstm_layer.ifgate_preact.weight"] == (16, 4096)
    assert shapes["backbone.blocks.0.mlstm_layer.ifgate_preact.bias"] == (16,)
    assert shapes["backbone.blocks.0.ffn.proj_up_gate_z.weight"] == (21888, 4096)
    assert xlstm.parameters(config) == xlstm.parameters(XLSTM_7B)


def test_fuse_orders_rows_by_name_and_unfuse_undoes_it():
    config = xlstm.Config(64, 2, 2, 11)
    single = {
        n: np.random.default_rng(1).standard_normal(s)
        for n, s in xlstm.tensor_shapes(config).items()
    }
    fused = xlstm.fuse(single, config)
    assert {n: a.shape for n, a in fused.items()} == xlstm.tensor_shapes(
        dataclasses.replace(config, weight_mode="fused")
    )
    layer = "backbone.blocks.1.mlstm_layer."
    rows = fused[layer + "qkv_opreact.weight"]
    assert np.array_equal(rows[32:64], single[layer + "k.weight"])
    assert np.array_equal(rows[128:], single[layer + "ogate_preact.weight"])
    assert np.array_equal(
        fused[layer + "ifgate_preact.bias"][2:], single[layer + "fgate_preact.bias"]
    )
    back = xlstm.unfuse(fused, config)
    assert back.keys() == single.keys()
    assert all(np.array_equal(back[n], single[n]) for n in single)


def test_config_accepts_either_key_of_a_pair():
    hub = xlstm.hub_config(XLSTM_7B, "float32")
    assert xlstm.config_from_dict(hub) == XLSTM_7B
    for key in ("hidden_size", "num_hidden_layers"):
        del hub[key]
    assert xlstm.config_from_dict(hub) == XLSTM_7B
    hub.update(hidden_size=hub.pop("embedding_dim"), num_hidden_layers=hub.pop("num_blocks"))
    assert xlstm.config_from_dict(hub) == XLSTM_7B
    with pytest.raises(ValueError, match="model_type"):
        xlstm.config_from_dict({"model_type": "llama"})


def test_inspect_from_a_config_alone(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(xlstm.hub_config(XLSTM_7B, "float32")))
    assert cli.main(["inspect", str(tmp_path), "--bandwidth", "4300", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["family"] == "xlstm"
    assert out["parameters"] == 6_865_424_896
    assert out["state_bytes_per_session"] == 134_480_896
    weights = 2 * (6_865_424_896 - 50304 * 4096)
    assert out["decode_floor"][0]["us"] == pytest.approx(
        (weights + 2 * 134_480_896) / 4300e9 * 1e6, rel=1e-6
    )


def test_inspect_names_what_is_wrong(tmp_path):
    config = xlstm.Config(64, 1, 2, 11)
    tensors = {
        n: st.tensor(np.zeros(s, np.float32)) for n, s in xlstm.tensor_shapes(config).items()
    }
    tensors["stranger"] = tensors.pop("lm_head.weight")
    tensors["backbone.out_norm.weight"] = st.tensor(np.zeros(63, np.float32))
    st.write(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text(json.dumps(xlstm.hub_config(config, "float32")))
    problems = inspect_checkpoint.summary(tmp_path)["problems"]
    assert problems == [
        "missing lm_head.weight [11, 64]",
        "extra stranger [11, 64]",
        "backbone.out_norm.weight: wanted [64], found [63]",
    ]
    assert cli.main(["inspect", str(tmp_path)]) == 1


def test_inspect_refuses_a_directory_without_config(tmp_path, capsys):
    assert cli.main(["inspect", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err


def test_inspect_needs_neither_pytorch_nor_sentencepiece():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['sentencepiece'] = None\n"
        "from weights_tools.__main__ import main\n"
        "sys.exit(main(['inspect', 'tests/golden/xlstm/sharded']))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0

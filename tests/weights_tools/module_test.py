"""The chunkwise training module against the golden files of the step recurrence."""

import numpy as np
import pytest

from conftest import ROOT
from weights_tools import safetensors_io as st
from weights_tools.families import xlstm

torch = pytest.importorskip("torch", reason="the training module needs PyTorch")


@pytest.mark.parametrize("case", ["single", "tied_bf16", "sharded"])
def test_chunks_with_carried_state_give_the_golden_logits(case):
    from weights_tools.families.xlstm_module import XLSTM

    directory = ROOT / "tests" / "golden" / "xlstm" / case
    config = xlstm.load_config(directory)
    golden = {n: t.array for n, t in st.read(directory / "golden.safetensors").items()}
    model = XLSTM(config, chunk=10).eval()
    tensors = st.read_checkpoint(directory)
    model.load_state_dict({n: torch.from_numpy(t.float32()) for n, t in tensors.items()})
    tokens = torch.from_numpy(golden["tokens.0"].astype(np.int64))[None]
    state, logits = model.zero_state(1), []
    with torch.no_grad():
        for begin, end in ((0, 40), (40, 100), (100, 101)):  # 4 chunks, 6 chunks, a single step
            out, state = model(tokens[:, begin:end], state)
            logits.append(out[0])
    assert np.abs(torch.cat(logits).numpy() - golden["logits.0"]).max() < 3e-4
    for b, block in enumerate(state):
        for name, value in zip("Cnm", block):
            assert np.abs(value[0].numpy() - golden[f"{name}.0"][b]).max() < 3e-5


def test_fresh_weights_are_those_of_the_family():
    from weights_tools.families.xlstm_module import XLSTM

    config = xlstm.Config(64, 2, 4, 50)
    model = XLSTM(config)
    shapes = {name: tuple(p.shape) for name, p in model.state_dict().items()}
    assert shapes == xlstm.tensor_shapes(config)
    layer = model.backbone.blocks[0].mlstm_layer
    assert layer.fgate_preact.bias.tolist() == [3, 4, 5, 6]
    assert layer.igate_preact.bias.tolist() == [-10] * 4
    assert not layer.fgate_preact.weight.any() and not layer.igate_preact.weight.any()

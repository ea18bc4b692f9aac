"""A tuned initial state of RWKV-7 and what BlinkDL's package rwkv computes from it, in fp64.

The state is random, of the golden checkpoint rwkv7/one_head, and saved as BlinkDL's training code saves one: a .pth of
blocks.N.att.time_state [H, value, key] in fp32. The package takes it as it is; shifts begin with zeros.
Run: python -m weights_tools.golden_rwkv_tuned OUT, in the environment of tests/golden/rwkv7/requirements.txt.
"""

import pathlib
import sys
import tempfile

import numpy as np

from weights_tools import golden_cases as cases
from weights_tools import golden_rwkv, rwkv_file, torch_file
from weights_tools import safetensors_io as st

CASE, SEED = "rwkv7/one_head", 71


def tuned(config):
    """name -> array. Not symmetric, and different in each layer."""
    rng = np.random.default_rng(SEED)
    heads = config.D // 64
    return {
        f"blocks.{i}.att.time_state": (0.5 * rng.standard_normal((heads, 64, 64))).astype(np.float32)
        for i in range(config.layers)
    }


def by_package(path, state, tokens, fp64):
    import torch

    module = golden_rwkv.package()
    model = module.RWKV(model=str(path.with_suffix("")), strategy="cpu fp32")
    if fp64:
        model.DTYPE = module.DTYPE = torch.float64
    dtype = torch.float64 if fp64 else torch.float32
    width, begin = model.args.n_embd, []
    for i in range(model.args.n_layer):
        matrix = torch.from_numpy(state[f"blocks.{i}.att.time_state"]).type(dtype).clone()
        begin += [torch.zeros(width, dtype=dtype), matrix, torch.zeros(width, dtype=dtype)]
    logits, _ = model.forward(tokens.tolist(), begin, full_output=True)
    return logits.double().numpy()


def main(argv):
    import torch

    out = pathlib.Path(argv[0])
    out.mkdir(parents=True, exist_ok=True)
    config, seed, dtype = golden_rwkv.CASES[CASE]
    state = tuned(config)
    torch.save({n: torch.from_numpy(a) for n, a in state.items()}, out / "tuned.pth")
    rwkv_file.write_tuned(out, torch_file.sources(out / "tuned.pth"), out)
    tokens = cases.sequences(config.vocab, seed)[1]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.pth"
        golden_rwkv.write_pth(path, golden_rwkv.random_weights(config, seed), dtype)
        fp32 = by_package(path, state, tokens, fp64=False)
        with cases.fp64():
            exact = by_package(path, state, tokens, fp64=True)
    worst = np.abs(exact - fp32).max() / np.abs(exact).max()
    print(f"{CASE} from a tuned state: the package in fp32 {worst:.1e}")
    st.write(out / "golden.safetensors", {"tokens": st.tensor(tokens), "logits": st.tensor(exact, "F32")})


if __name__ == "__main__":
    main(sys.argv[1:])

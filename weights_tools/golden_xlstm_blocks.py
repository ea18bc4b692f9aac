"""Golden checkpoints of the research xLSTM, computed by the package xlstm 2.0.6, step by step, in fp64.

Run: python -m weights_tools.golden_xlstm_blocks OUT [CASE...], with PyTorch and the package (its vanilla backend;
a checkpoint of the cuda backend is the same model with two tensors laid out otherwise).
"""

import pathlib
import sys

import numpy as np

from weights_tools import golden_cases as cases
from weights_tools.families import xlstm_blocks


def _config(slstm_at, backend, blocks=3, **changes):
    return {
        "model_type": "xlstm_blocks",
        "vocab_size": 97,
        "embedding_dim": 32,
        "num_blocks": blocks,
        "context_length": 128,
        "slstm_at": slstm_at,
        "add_post_blocks_norm": True,
        "bias": False,
        "dropout": 0.0,
        "tie_weights": False,
        "mlstm_block": {
            "mlstm": {
                "num_heads": 2,
                "conv1d_kernel_size": 4,
                "qkv_proj_blocksize": 4,
                "proj_factor": 2.0,
            }
        },
        "slstm_block": {
            "slstm": {"num_heads": 2, "conv1d_kernel_size": 4, "backend": backend},
            "feedforward": {"proj_factor": 1.3, "act_fn": "gelu"},
        },
        "torch_dtype": "float32",
        **changes,
    }


def _biased(values):
    values["slstm_block"]["feedforward"]["bias"] = True
    return values


CASES = {
    "xlstm_blocks/vanilla": (_config([1], "vanilla"), 31),
    "xlstm_blocks/cuda": (_config([1], "cuda"), 31),
    "xlstm_blocks/bf16": (_config([1], "vanilla", torch_dtype="bfloat16"), 33),
    "xlstm_blocks/bias": (_biased(_config([1], "vanilla", bias=True)), 34),
    "xlstm_blocks/slstm_only_tied": (_config("all", "vanilla", 2, tie_weights=True), 32),
}


def random_weights(config, seed):
    rng = np.random.default_rng(seed)
    out = {}
    for name, shape in sorted(xlstm_blocks.tensor_shapes(config).items()):
        normal = rng.standard_normal(shape)
        if "norm" in name:
            out[name] = 0.4 * normal
        elif name.endswith("learnable_skip"):
            out[name] = 1 + 0.4 * normal
        elif name.endswith("igate.bias"):
            out[name] = np.linspace(-4, 1, shape[0])
        elif name.endswith("fgate.bias"):
            out[name] = np.linspace(4, 1, shape[0])
        elif name.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias", "up.bias", "down.bias")):
            out[name] = 0.5 * normal
        elif name.endswith("_bias_"):
            out[name] = 1.5 * normal
        elif "embedding" in name:
            out[name] = 1.5 * normal
        elif name == "lm_head.weight":
            out[name] = 5 * normal / np.sqrt(shape[-1])
        elif name.endswith("_recurrent_kernel_"):
            out[name] = 1.2 * normal / np.sqrt(min(shape[1:]))
        else:
            out[name] = 1.5 * normal / np.sqrt(shape[-1])
    return {name: value.astype(np.float32) for name, value in out.items()}


def package_model(values):
    import dacite
    from xlstm import xLSTMLMModel, xLSTMLMModelConfig

    given = {k: v for k, v in values.items() if k not in ("model_type", "torch_dtype")}
    given["slstm_block"]["slstm"]["backend"] = "vanilla"
    if given["slstm_at"] == "all":
        given["mlstm_block"] = None
        given["slstm_at"] = list(range(given["num_blocks"]))
    return xLSTMLMModel(dacite.from_dict(xLSTMLMModelConfig, given)).eval()


def states_of(config, state):
    out = []
    for b, is_slstm in enumerate(config.slstm):
        block = state[f"block_{b}"]
        conv = block["conv_state"][0][0].T[:, 1:].double().numpy()  # [channels, 3]
        if is_slstm:
            cell = block["slstm_state"][:, 0].reshape(4, config.slstm_H, -1).double().numpy()
            named = dict(zip(("h", "c", "sn", "sm"), cell))
        else:
            C, n, m = (part[0].double().numpy() for part in block["mlstm_state"])
            named = {"C": C, "n": n[..., 0], "m": m.reshape(-1)}
        out.append({**named, "conv": conv})
    return xlstm_blocks.stored_states(out)


def by_package(config, values, weights, seed, dtype):
    import copy

    import torch

    model = package_model(copy.deepcopy(values)).to(dtype)
    named = {n: torch.from_numpy(w).to(dtype) for n, w in weights.items()}
    missing, extra = model.load_state_dict(named, strict=False)
    assert not extra and set(missing) <= {"lm_head.weight"}, (missing, extra)
    out = []
    with torch.no_grad():
        for tokens in cases.sequences(config.vocab, seed):
            state, logits = None, []
            for token in tokens:
                step, state = model.step(torch.tensor([[int(token)]]), state=state)
                logits.append(step[0, 0].double().numpy())
            out.append((tokens, np.stack(logits), states_of(config, state)))
    return out


def vanilla(name):
    """The case's config with the vanilla backend, whose layout the package's own model has."""
    return CASES[name.replace("cuda", "vanilla")][0]


def drawn(name):
    """The weights of a case, as its file has them: name -> Tensor."""
    values, seed = CASES[name]
    config, plain = (xlstm_blocks.config_from_dict(v) for v in (values, vanilla(name)))
    tensors = cases.stored(random_weights(plain, seed), values)
    if not config.cuda_layout:
        return tensors
    weights = {n: xlstm_blocks.other_layout(config, n, t.float32()) for n, t in tensors.items()}
    return cases.stored(weights, values)


def make(name, out):
    import torch

    values, seed = CASES[name]
    config = xlstm_blocks.config_from_dict(values)
    plain = xlstm_blocks.config_from_dict(vanilla(name))
    weights = {n: t.float32() for n, t in drawn(name.replace("cuda", "vanilla")).items()}
    fp32 = by_package(plain, vanilla(name), weights, seed, torch.float32)
    with cases.fp64():
        exact = by_package(plain, vanilla(name), weights, seed, torch.float64)
    tensors = drawn(name)
    equations = [
        (tokens, *xlstm_blocks.run(config, tensors, tokens))
        for tokens in cases.sequences(config.vocab, seed)
    ]
    print(
        f"| {name.split('/')[1]} | {xlstm_blocks.parameters(config):,} | "
        f"{cases.difference(exact, equations):.1e} | {cases.difference(exact, fp32):.1e} |"
    )
    cases.write(out / name, values, tensors, exact)


def main(argv):
    for name in cases.chosen(CASES, argv[1:]):
        make(name, pathlib.Path(argv[0]))


if __name__ == "__main__":
    main(sys.argv[1:])

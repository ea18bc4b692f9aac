"""Golden checkpoints of the xLSTM-large with a sigmoid input gate, by the package's own model.

The xlstm package has this gate in its parallel form only, which gives no states: logits are those of
xLSTMLarge with kernel parallel--native_siging_autograd in fp64, states those of the step recurrence in
fp64 (families/xlstm_step.py), whose logits are compared with the package's. The package's step kernels
are the exponential gate's whatever chunkwise_kernel says, so its inference mode is wrong here.
Run: python -m weights_tools.golden_xlstm_siging OUT, with xlstm 2.0.6 and mlstm_kernels 2.0.6.
"""

import dataclasses
import pathlib
import sys

import numpy as np

from weights_tools import golden
from weights_tools import golden_cases as cases
from weights_tools.families import xlstm

_NORMALISED = dataclasses.replace(
    golden.CASES["single"].config, chunkwise_kernel="chunkwise--triton_xl_chunk_siging"
)
CASES = {
    "siging": golden.Case(_NORMALISED, seed=4),
    "siging_paper": golden.Case(
        dataclasses.replace(
            _NORMALISED,
            num_heads=4,
            norm_eps=1e-6,
            weight_mode="fused",
            normalize_siging=False,
        ),
        seed=5,
    ),
}


def package_model(config, tensors, dtype):
    import torch
    from xlstm.xlstm_large.model import xLSTMLarge, xLSTMLargeConfig

    c = config
    model = xLSTMLarge(
        xLSTMLargeConfig(
            embedding_dim=c.hidden_size,
            num_heads=c.num_heads,
            num_blocks=c.num_blocks,
            vocab_size=c.vocab_size,
            norm_eps=c.norm_eps,
            qk_dim_factor=c.qk_dim_factor,
            v_dim_factor=c.v_dim_factor,
            chunkwise_kernel="parallel--native_siging_autograd",
            sequence_kernel="native_sequence__native",
            step_kernel="native",
            mode="train",
            return_last_states=False,
            autocast_kernel_dtype="float32",
            eps=c.eps,
            ffn_proj_factor=c.ffn_proj_factor,
            ffn_round_up_to_multiple_of=c.ffn_round_up_to_multiple_of,
            gate_soft_cap=c.gate_soft_cap,
            output_logit_soft_cap=c.output_logit_soft_cap,
            weight_mode=c.weight_mode,
        )
    )
    renamed = {name.replace("backbone.embeddings.", "embedding."): t for name, t in tensors.items()}
    if c.tie_word_embeddings:
        renamed["lm_head.weight"] = renamed["embedding.weight"]
    model.load_state_dict({n: torch.from_numpy(t.float32()) for n, t in renamed.items()})
    for block in model.backbone.blocks:
        assert block.mlstm_layer.config.gate_soft_cap == c.gate_soft_cap
        backend = block.mlstm_layer.mlstm_backend
        backend.config.normalize_siging = c.normalize_siging  # xLSTMLargeConfig has no word for it
        # The layer wants a state with h, and the parallel kernels have none.
        backend.forward = lambda forward=backend.forward, **inputs: (forward(**inputs), None)
    return model.to(dtype).eval()


def by_package(case, tensors, dtype):
    """-> logits of each sequence."""
    import torch

    model = package_model(case.config, tensors, dtype)
    with torch.no_grad():
        return [
            model(torch.from_numpy(tokens).long()[None])[0].double().numpy()
            for tokens in cases.sequences(case.config.vocab_size, case.seed)
        ]


def by_equations(case, tensors):
    import torch

    from weights_tools.families import xlstm_step

    weights = {n: torch.from_numpy(t.float32().astype(np.float64)) for n, t in tensors.items()}
    out = []
    for tokens in cases.sequences(case.config.vocab_size, case.seed):
        with torch.no_grad():
            logits, state = xlstm_step.run(case.config, weights, tokens)
        stacked = {
            name: torch.stack([block[index] for block in state]).numpy()
            for index, name in enumerate(case.config.states)
        }
        out.append((tokens, logits.numpy(), stacked))
    return out


def make(name, directory):
    import torch

    case = CASES[name]
    tensors = golden.drawn(case)
    equations = by_equations(case, tensors)
    with cases.fp64():
        exact = by_package(case, tensors, torch.float64)
    fp32 = by_package(case, tensors, torch.float32)

    def difference(logits):
        return cases.difference([(t, l, {}) for t, l, _ in equations], [(0, l, {}) for l in logits])

    print(
        f"{name}: package fp64 to equations {difference(exact):.1e}, fp32 {difference(fp32):.1e}, "
        f"{xlstm.parameters(case.config):,} parameters"
    )
    results = [(tokens, logits, state) for (tokens, _, state), logits in zip(equations, exact)]
    cases.write(directory / name, xlstm.hub_config(case.config, "float32"), tensors, results)


def main(argv):
    for name in CASES:
        make(name, pathlib.Path(argv[0]))


if __name__ == "__main__":
    main(sys.argv[1:])

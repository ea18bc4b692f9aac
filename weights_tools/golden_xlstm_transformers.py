"""Golden checkpoints of xLSTM-large as transformers itself writes and computes them.

Their widths of queries and values are no multiples of mlstm_round_up_to_multiple_of, and the config of
one ties a head that transformers does not tie: the file has both. Logits and states are those of
xLSTMForCausalLM in fp64, native kernels. It is asked for no cache, which it would make in rounded
widths and then could not fill; the states are what its blocks return.
Run: python -m weights_tools.golden_xlstm_transformers OUT [CASE...], with transformers 5.23 and without
the package xlstm, which transformers would take instead of its own code.
"""

import dataclasses
import pathlib
import sys

import numpy as np

from weights_tools import golden
from weights_tools import golden_cases as cases
from weights_tools import safetensors_io as st
from weights_tools.families import xlstm

# 96 * 0.48 = 46.08: 46 wide, heads of 23 x 48. The feed-forward alone is rounded up: 124.8 to 128.
_WIDTHS = xlstm.Config(
    hidden_size=96,
    num_blocks=1,
    num_heads=2,
    vocab_size=97,
    qk_dim_factor=0.48,
    ffn_proj_factor=1.3,
)
CASES = {
    "widths": golden.Case(_WIDTHS, seed=6),
    "tied_with_head": golden.Case(
        dataclasses.replace(
            _WIDTHS,
            hidden_size=48,
            num_blocks=2,
            num_heads=4,
            qk_dim_factor=0.5,
            tie_word_embeddings=True,
        ),
        seed=7,
    ),
}


def transformers_model(config, tensors, dtype):
    import torch
    import transformers

    values = {k: v for k, v in xlstm.hub_config(config, "float32").items() if k != "torch_dtype"}
    model = transformers.xLSTMForCausalLM(transformers.xLSTMConfig(**values)).to(dtype)
    weights = {name: torch.from_numpy(t.array).to(dtype) for name, t in tensors.items()}
    model.load_state_dict(weights)
    head, table = model.lm_head.weight, model.backbone.embeddings.weight
    assert head is not table and not torch.equal(head, table)  # whatever the config says
    return model.eval()


def by_transformers(case, tensors, dtype):
    """-> of each sequence, (tokens, logits, name -> state)."""
    import torch

    model = transformers_model(case.config, tensors, dtype)
    states = {}
    for index, block in enumerate(model.backbone.blocks):
        block.register_forward_hook(lambda _, __, out, index=index: states.update({index: out[1]}))
    results = []
    for tokens in cases.sequences(case.config.vocab_size, case.seed):
        with torch.no_grad():
            logits = model(torch.from_numpy(tokens).long()[None], use_cache=False).logits[0]
        of_blocks = [[part[0].numpy() for part in states[b]] for b in range(case.config.num_blocks)]
        C, n, m = (np.stack(parts) for parts in zip(*of_blocks))
        results.append((tokens, logits.numpy(), {"C": C, "n": n, "m": m.reshape(n.shape[:2])}))
    return results


def by_equations(case, tensors):
    import torch

    from weights_tools.families import xlstm_step

    config = dataclasses.replace(case.config, tie_word_embeddings=False)
    weights = {n: torch.from_numpy(t.array.astype(np.float64)) for n, t in tensors.items()}
    out = []
    for tokens in cases.sequences(config.vocab_size, case.seed):
        with torch.no_grad():
            logits, state = xlstm_step.run(config, weights, tokens)
        stacked = (torch.stack([block[i] for block in state]).numpy() for i in range(3))
        out.append((tokens, logits.numpy(), dict(zip("Cnm", stacked))))
    return out


def untied(case):
    """The case with the head that transformers gives it, whatever the config says."""
    return dataclasses.replace(case, config=dataclasses.replace(case.config, tie_word_embeddings=False))


def make(name, directory):
    import torch

    case = CASES[name]
    tensors = golden.drawn(untied(case))
    with cases.fp64():
        exact = by_transformers(case, tensors, torch.float64)
    fp32 = by_transformers(case, tensors, torch.float32)
    equations = by_equations(case, tensors)
    print(
        f"{name}: equations to transformers fp64 {cases.difference(exact, equations):.1e}, fp32 "
        f"{cases.difference(exact, fp32):.1e}, {xlstm.parameters(untied(case).config):,} parameters"
    )
    cases.write(directory / name, {}, {}, exact)
    transformers_model(case.config, tensors, torch.float32).save_pretrained(directory / name)
    assert st.read_checkpoint(directory / name).keys() == tensors.keys()


def main(argv):
    for name in cases.chosen(CASES, argv[1:]):
        make(name, pathlib.Path(argv[0]))


if __name__ == "__main__":
    main(sys.argv[1:])

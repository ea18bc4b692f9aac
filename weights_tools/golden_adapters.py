"""LoRA adapters of golden checkpoints, and what PEFT and transformers compute with them in fp64.

A and B are random and saved by PEFT's save_pretrained(). The results are those of the model that PEFT's from_pretrained()
makes of the folder and, for the second sequence, of the model whose weights PEFT has merged with the adapter.
Run: python -m weights_tools.golden_adapters OUT [CASE...], in the environment of tests/golden/adapters/requirements.txt.
"""

import pathlib
import sys

import numpy as np

from weights_tools import golden_cases as cases
from weights_tools import golden_hybrid, golden_mamba, golden_qwen3_5
from weights_tools import safetensors_io as st
from weights_tools.families import qwen3_5

_ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
_FFN = ["gate_proj", "up_proj", "down_proj"]
# name: (golden checkpoint, arguments of LoraConfig, type of A and B, seed)
CASES = {
    # Other ranks and scales in some layers.
    "mamba_patterns": (
        "mamba/hf",
        {
            "r": 4,
            "lora_alpha": 6,
            "target_modules": ["in_proj", "x_proj"],
            "rank_pattern": {"layers.1.mixer.in_proj": 7, "x_proj": 3},
            "alpha_pattern": {"layers.0.mixer.x_proj": 1.5},
        },
        "float32",
        201,
    ),
    "mamba_rslora": ("mamba/hf", {"r": 5, "lora_alpha": 3, "target_modules": ["in_proj"], "use_rslora": True}, "bfloat16", 202),
    "qwen3_5_all": (
        "qwen3_5/pattern",
        {
            "r": 4,
            "lora_alpha": 8,
            "target_modules": [*_ATTENTION, *_FFN, "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"],
            "rank_pattern": {"k_proj": 1, "mlp.up_proj": 9, "layers.2.linear_attn.in_proj_z": 2},
        },
        "float32",
        203,
    ),
    # Attention alone, as most adapters are: one of the joined matrices has none.
    "qwen3_5_attention": ("qwen3_5/pattern", {"r": 3, "lora_alpha": 3, "target_modules": ["q_proj", "v_proj"]}, "float32", 204),
    # Tensors whose rows the server has in another order. PEFT takes names of feed-forward layers for those of experts.
    "qwen3_next": (
        "qwen3_next/bf16",
        {"r": 4, "lora_alpha": 4, "target_modules": [*_ATTENTION, "in_proj_qkvz", "in_proj_ba", "out_proj"]},
        "float32",
        205,
    ),
}


def base_model(checkpoint, dtype):
    """-> transformers' model of a golden checkpoint, the seed of its sequences and the size of its vocabulary."""
    import transformers

    if checkpoint in golden_mamba.CASES:
        family, values, seed = golden_mamba.CASES[checkpoint]
        config = family.config_from_dict(values)
        weights = golden_mamba.random_weights(family, config, seed)
        return golden_mamba.transformers_model(values, weights).to(dtype), seed, config.vocab
    values, seed = golden_qwen3_5.CASES[checkpoint]
    tensors = golden_qwen3_5.drawn(checkpoint)
    c = qwen3_5.config_from_dict(values)
    if checkpoint.startswith("qwen3_next"):
        c = qwen3_5.as_stored(c, tensors)
    skipped = ("architectures", "model_type", "torch_dtype")
    name = values["architectures"][0]
    text = "Text" if name.startswith("Qwen3_5") else ""
    config = getattr(transformers, name.replace("ForCausalLM", f"{text}Config"))(
        **{k: v for k, v in values.items() if k not in skipped}
    )
    stacked = golden_qwen3_5.with_stacked_experts(c, tensors)
    return golden_hybrid.load(getattr(transformers, name), config, stacked, dtype), seed, c.vocab


def save_adapter(case, folder):
    """Random A and B, of a size at which they change the logits as much as the base model's weights do."""
    import peft
    import torch

    checkpoint, options, dtype, seed = case
    model, _, _ = base_model(checkpoint, torch.float32)
    model.name_or_path = model.config._name_or_path = checkpoint
    model = peft.get_peft_model(model, peft.LoraConfig(**options, task_type="CAUSAL_LM"))
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, weights in sorted(model.named_parameters()):
            if "lora_" not in name:
                continue
            gain = 0.6 if "lora_B" in name else 1.0
            normal = gain * rng.standard_normal(weights.shape) / np.sqrt(weights.shape[-1])
            weights.data = torch.from_numpy(normal).to(getattr(torch, dtype))
    model.save_pretrained(folder)
    (folder / "README.md").unlink()


def results(model, vocab, seed):
    import torch

    out = []
    for tokens in cases.sequences(vocab, seed):
        out.append((tokens, model(torch.from_numpy(tokens).long()[None]).logits[0].double().numpy(), {}))
    return out


def with_adapter(case, folder, dtype, merged=False):
    import peft

    model, seed, vocab = base_model(case[0], dtype)
    if folder is not None:
        model = peft.PeftModel.from_pretrained(model, folder).to(dtype).eval()
    if merged:
        model = model.merge_and_unload()
    return results(model, vocab, seed)


def make(name, folder):
    """Writes the adapter and its results, and prints its row for the README."""
    import torch

    case = CASES[name]
    save_adapter(case, folder)
    with torch.no_grad():
        fp32 = with_adapter(case, folder, torch.float32)
        with golden_hybrid.all_in_fp64():
            exact = with_adapter(case, folder, torch.float64)
            merged = with_adapter(case, folder, torch.float64, merged=True)
            base = with_adapter(case, None, torch.float64)
    apart = [cases.difference(exact, other) for other in (base, merged, fp32)]
    assert apart[0] > 0.1 and apart[1] < 1e-12, apart
    parameters = sum(t.array.size for t in st.read(folder / "adapter_model.safetensors").values())
    words = " | ".join(f"{difference:.1e}" for difference in apart)
    print(f"| {name} | {case[0]} | {parameters:,} | {words} |")
    golden = {}
    for s, (tokens, logits, _) in enumerate(exact):
        golden[f"tokens.{s}"] = st.tensor(tokens)
        golden[f"logits.{s}"] = st.tensor(logits, "F32")
    golden["merged.1"] = st.tensor(merged[1][1], "F32")
    st.write(folder / "golden.safetensors", golden)


def main(argv):
    for name in cases.chosen(CASES, argv[1:]):
        folder = pathlib.Path(argv[0]) / name
        folder.mkdir(parents=True, exist_ok=True)
        make(name, folder)


if __name__ == "__main__":
    main(sys.argv[1:])

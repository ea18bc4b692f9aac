"""Trains a small Mamba, Mamba-2, GLA, RWKV-7, Qwen3.5 or research xLSTM as weights_tools.train does the xLSTM: the same
books, held-out parts, tokenizer, rows of text and reporting. Writes the family's public format.

python -m weights_tools.train_family --family mamba --data BOOKS --tokenizer TOKENIZER.model --out DIR
"""

import argparse
import json
import pathlib
import sys

from weights_tools import corpus, model_card, train
from weights_tools import safetensors_io as st
from weights_tools.families import gla, mamba, mamba2, qwen3_5, rwkv7, xlstm_blocks

HEAD = """# {name}

A small {title} language model of English prose, {parameters:,} parameters, in {format} (bf16
safetensors, SentencePiece tokenizer). It is here to show and to test the server: it knows how sentences of
19th-century books go and knows nothing else. {state} of state per session. `<s>` (id 1)
separates chapters: put it before a prompt, and stop on it.

"""
_IDS = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0, "torch_dtype": "bfloat16"}
FAMILIES = {
    "mamba": (mamba, "Mamba", "transformers' Mamba format"),
    "mamba2": (mamba2, "Mamba-2", "transformers' Mamba-2 format"),
    "gla": (gla, "gated linear attention", "flash-linear-attention's GLA format"),
    "qwen3_5": (qwen3_5, "Qwen3.5 (gated delta rule and attention)", "transformers' Qwen3.5 format"),
    "rwkv7": (rwkv7, "RWKV-7", "flash-linear-attention's RWKV-7 format"),
    "xlstm_blocks": (
        xlstm_blocks,
        "xLSTM (mLSTM and sLSTM blocks)",
        "the research xLSTM's names and config keys",
    ),
}


def config_of(family, vocab, width, layers):
    mixers = {"expand": 2, "conv_kernel": 4, "hidden_act": "silu", "use_bias": False}
    mixers |= {"use_conv_bias": True, "residual_in_fp32": True, "layer_norm_epsilon": 1e-5}
    size = {"hidden_size": width, "num_hidden_layers": layers, "vocab_size": vocab}
    kind = {"model_type": family, "tie_word_embeddings": True, **_IDS}
    if family == "mamba":
        own = {"architectures": ["MambaForCausalLM"], "intermediate_size": 2 * width}
        return {**kind, **own, **size, **mixers, "state_size": 16, "time_step_rank": width // 16}
    if family == "mamba2":
        own = {"architectures": ["Mamba2ForCausalLM"], "num_heads": width // 32, "head_dim": 64}
        own |= {"n_groups": 1, "state_size": 64, "chunk_size": 64, "rms_norm": True}
        return {**kind, **own, **size, **mixers}
    if family == "gla":
        own = {"architectures": ["GLAForCausalLM"], "num_heads": 4, "expand_k": 0.5}
        own |= {"expand_v": 1.0, "intermediate_size": width * 5 // 2, "hidden_act": "swish"}
        own |= {"norm_eps": 1e-6, "use_gk": True, "use_gv": False, "use_short_conv": False}
        return {**kind, **own, **size}
    if family == "qwen3_5":
        own = {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text"}
        own |= {"intermediate_size": width * 3 // 2, "hidden_act": "silu", "rms_norm_eps": 1e-6}
        own |= {"num_attention_heads": width // 64, "num_key_value_heads": width // 128, "head_dim": 64}
        own |= {"attention_bias": False, "linear_num_key_heads": width // 128, "linear_key_head_dim": 64}
        own |= {"linear_num_value_heads": width // 64, "linear_value_head_dim": 64}
        own |= {"linear_conv_kernel_dim": 4, "full_attention_interval": 4, "max_position_embeddings": 4096}
        own["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
        own["rope_parameters"] |= {"mrope_section": [3, 3, 2], "mrope_interleaved": True}
        return {**kind, **own, **size}
    if family == "rwkv7":
        ranks = {"decay": width // 8, "a": width // 8, "v": width // 16, "gate": width // 4}
        own = {"architectures": ["RWKV7ForCausalLM"], "head_dim": 64, "intermediate_size": 3 * width}
        own |= {f"{name}_low_rank_dim": rank for name, rank in ranks.items()}
        own |= {"hidden_act": "sqrelu", "norm_eps": 1e-5, "norm_bias": True, "norm_first": True}
        return {**kind, **own, **size}
    own = {"embedding_dim": width, "num_blocks": layers, "slstm_at": [1, layers // 2 + 1]}
    own |= {"vocab_size": vocab, "add_post_blocks_norm": True, "bias": False, "tie_weights": True}
    own["mlstm_block"] = {
        "mlstm": {"num_heads": 4, "conv1d_kernel_size": 4, "qkv_proj_blocksize": 4, "proj_factor": 2.0}
    }
    own["slstm_block"] = {
        "slstm": {"num_heads": width // 64, "conv1d_kernel_size": 4, "backend": "vanilla"},
        "feedforward": {"proj_factor": 1.3, "act_fn": "gelu"},
    }
    return {"model_type": family, **own, **_IDS}


def options_of(argv):
    parser = argparse.ArgumentParser(prog="python -m weights_tools.train_family", description=__doc__)
    parser.add_argument("--family", required=True, choices=sorted(FAMILIES))
    parser.add_argument("--tokenizer", required=True, type=pathlib.Path)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--blocks", type=int, help="number of blocks (default: 6 for GLA and RWKV-7, 8 for Qwen3.5, 10 for others)")
    train.add_training_arguments(parser)
    return parser.parse_args(argv)


def model_class(family):
    from weights_tools.families.gla_module import GlaLM
    from weights_tools.families.mamba_module import MambaLM
    from weights_tools.families.qwen3_5_module import Qwen35LM
    from weights_tools.families.rwkv7_module import Rwkv7LM
    from weights_tools.families.xlstm_blocks_module import XlstmBlocksLM

    modules = {"gla": GlaLM, "qwen3_5": Qwen35LM, "rwkv7": Rwkv7LM, "xlstm_blocks": XlstmBlocksLM}
    return modules.get(family, MambaLM)


def state_size(family, config):
    size = f"{family.state_bytes(config):,} bytes"
    of_token = getattr(family, "state_bytes_of_token", None)
    return size if of_token is None else f"{size} and {of_token(config):,} bytes a token"


def main(argv):
    import torch

    from weights_tools import tokenizer, trainer

    options = options_of(argv)
    options.blocks = options.blocks or {"gla": 6, "qwen3_5": 8, "rwkv7": 6}.get(options.family, 10)
    torch.manual_seed(options.seed)
    books = corpus.load(options.data, options.held_out)
    for book in books if options.limit else ():
        book.documents, book.held_out = book.documents[: options.limit], book.held_out[:4]
    model_bytes = options.tokenizer.read_bytes()
    processor = tokenizer.load(model_bytes)
    family, title, public = FAMILIES[options.family]
    values = config_of(options.family, processor.vocab_size(), options.hidden_size, options.blocks)
    config = family.config_from_dict(values)
    print(f"{family.parameters(config):,} parameters", flush=True)
    model = model_class(options.family)(config, options.dropout)
    found = {n: tuple(p.shape) for n, p in model.named_parameters()}
    assert found == family.tensor_shapes(config), set(found) ^ set(family.tensor_shapes(config))
    longest = values.get("max_position_embeddings")
    result = trainer.Trainer(options, model, processor, books, longest).run()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "tokenizer.model").write_bytes(model_bytes)
    (options.out / "config.json").write_text(json.dumps(values, indent=2) + "\n")
    # Values that bf16 holds exactly, decays and time steps in fp32 as in the public checkpoints.
    wide = ("A_log", ".D", "dt_bias", "dt_proj.bias")
    tensors = {
        n: st.tensor(p.numpy(), "F32" if n.endswith(wide) else "BF16")
        for n, p in result.pop("weights").items()
    }
    st.write(options.out / st.SINGLE_NAME, tensors)
    result["recipe"] = train.recipe(options)
    (options.out / "training.json").write_text(json.dumps(result, indent=1) + "\n")
    head = HEAD.format(
        name=options.out.resolve().name,
        title=title,
        format=public,
        parameters=family.parameters(config),
        state=state_size(family, config),
    )
    body = model_card.body(books, result, longest)
    command = f"weights_tools.train_family --family {options.family} --tokenizer tokenizer.model"
    body = body.replace("weights_tools train", command)
    (options.out / "README.md").write_text(head + body)
    print(f"held out: {result['held_out']['all']:.4f} bits per byte", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

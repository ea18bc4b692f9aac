"""Golden checkpoints of GLA and its relatives, the recurrences by flash-linear-attention's naive functions.

fla's models need a GPU; its naive functions and its feature maps are plain PyTorch and are read from
their files alone. What is around them (projections, norms, rotary embedding, convolutions) is PyTorch's
functional library here, over whole sequences, and is compared with the step recurrence of families/gla.py.
Run: python -m weights_tools.golden_gla OUT FLA [CASE...], FLA being the folder of the package fla 0.6.
"""

import dataclasses
import importlib.util
import pathlib
import sys

import numpy as np

from weights_tools import golden_cases as cases
from weights_tools.families import gla

_GLA = {
    "architectures": ["GLAForCausalLM"],
    "model_type": "gla",
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_heads": 2,
    "expand_k": 0.5,
    "expand_v": 1.0,
    "intermediate_size": 64,
    "hidden_act": "swish",
    "norm_eps": 1e-3,
    "use_gk": True,
    "use_gv": False,
    "use_short_conv": False,
    "clamp_min": None,
    "fuse_norm": True,
    "attn_mode": "chunk",
    "vocab_size": 97,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def _other(kind, **changes):
    gone = ("architectures", "use_gk", "use_gv", "clamp_min", "expand_k", "expand_v")
    return {**{k: v for k, v in _GLA.items() if k not in gone}, "model_type": kind, **changes}


_LINEAR = {"output_norm": "rmsnorm", "norm_q": False, "norm_k": False}
CASES = {
    "gla/gla": (_GLA, 21),
    "gla/gla_old_mlp_tied": ({**_GLA, "tie_word_embeddings": True}, 22),
    "gla/bf16": ({**_GLA, "torch_dtype": "bfloat16"}, 28),
    "gla/simple_gla": (_other("simple_gla", use_short_conv=True, conv_size=4), 23),
    "gla/retnet": (_other("retnet", expand_k=1.0, expand_v=2.0, hidden_size=32, num_heads=4), 24),
    "gla/linear_attn": (_other("linear_attn", feature_map="identity", **_LINEAR), 25),
    "gla/linear_attn_normalised": (
        _other("linear_attn", feature_map="elu", norm_feature_map=True, **_LINEAR),
        26,
    ),
    "gla/linear_attn_hedgehog": (
        _other("linear_attn", feature_map="hedgehog", norm_feature_map=True, **_LINEAR),
        51,
    ),
    # The feature map where none is named.
    "gla/linear_attn_product": (_other("linear_attn", **_LINEAR), 52),
    "gla/linear_attn_t2r_kv": (
        _other(
            "linear_attn", feature_map="t2r", tie_feature_map_qk=True, num_kv_heads=1, **_LINEAR
        ),
        53,
    ),
    "gla/linear_attn_dpfp": (
        _other(
            "linear_attn",
            feature_map="dpfp",
            norm_feature_map=True,
            num_heads=4,
            **{**_LINEAR, "norm_q": True, "norm_k": True},
        ),
        54,
    ),
    "gla/gla_kv": (
        {**_GLA, "num_heads": 4, "num_kv_heads": 2, "use_short_conv": True, "conv_size": 4},
        55,
    ),
    "gla/retnet_kv": (
        _other("retnet", expand_k=1.0, expand_v=2.0, hidden_size=32, num_heads=4, num_kv_heads=2),
        56,
    ),
    "gla/hgrn2_conv": (
        _other("hgrn2", num_heads=None, expand_ratio=16, use_short_conv=True, conv_size=4),
        57,
    ),
    "gla/hgrn2": (_other("hgrn2", num_heads=None, expand_ratio=16, num_hidden_layers=3), 27),
}


def random_weights(config, seed):
    rng = np.random.default_rng(seed)
    out = {}
    for name, shape in sorted(gla.tensor_shapes(config).items()):
        normal = rng.standard_normal(shape)
        if "norm" in name:
            out[name] = 1 + 0.4 * normal
        elif name.endswith("gk_proj.1.bias") or name.endswith("gk_proj.bias"):
            out[name] = rng.uniform(-8, 2, shape)
        elif name == "model.embeddings.weight":
            out[name] = 1.5 * normal
        elif name == "model.lower_bounds":
            out[name] = 0.7 * normal
        elif name == "lm_head.weight":
            out[name] = 5 * normal / np.sqrt(shape[-1])
        else:
            out[name] = 1.5 * normal / np.sqrt(shape[-1])
    return {name: value.astype(np.float32) for name, value in out.items()}


def naive(package, path, function):
    spec = importlib.util.spec_from_file_location("naive", pathlib.Path(package) / "ops" / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)


def feature_maps(c, package, w):
    """Those of q and k, of fla's modules where they are any."""
    import torch
    from torch.nn import functional as F

    plain = {
        "elu": lambda t: F.elu(t) + 1,
        "identity": lambda t: t,
        "": lambda t: t,
        "relu": F.relu,
    }
    if c.feature_map in plain:
        return plain[c.feature_map], plain[c.feature_map]
    name = {"hedgehog": "Hedgehog", "t2r": "T2R", "elementwise_product": "Hadamard", "dpfp": "DPFP"}
    module = cases.definition(package, "modules/feature_map.py", name[c.feature_map] + "FeatureMap")
    maps = []
    for of in "qk":
        map_ = module(c.DK).to(w["attn_norm.weight"].dtype)
        prefix = f"attn.feature_map_{'q' if c.map_tied else of}."
        map_.load_state_dict(gla.common.under(w, prefix))
        norm = c.norm_q if of == "q" else c.norm_k
        maps.append(lambda t, f=map_, n=norm: f(t) / (f(t).sum(-1, True) + 1e-4) if n else f(t))
    return maps


def recur(c, package, q, k, v, g):
    """q k g [1, T, H, DK], v [1, T, H, DV] -> o, S, z."""
    if c.type in ("gla", "hgrn2"):
        function = naive(package, "gla/naive.py", "naive_recurrent_gla")
        return *function(q, k, v, g, output_final_state=True), None
    if c.type == "linear_attn":
        function = naive(package, "linear_attn/naive.py", "naive_recurrent_linear_attn")
        o, state = function(q, k, v, output_final_state=True, normalize=c.normaliser)
        return (o, state[0], state[1][0, 0]) if c.normaliser else (o, state, None)
    function = naive(package, "simple_gla/naive.py", "naive_chunk_simple_gla")
    return *function(q, k, v, g[..., 0], output_final_state=True, chunk_size=16), None


def rotate(x):
    """x [1, T, H, DK], as fla's rotary_embedding_ref."""
    import torch

    half = x.shape[-1] // 2
    steps = torch.arange(x.shape[1], dtype=x.dtype)
    angle = torch.outer(steps, 10000 ** (-torch.arange(0, half, dtype=x.dtype) / half))[:, None]
    a, b = x.chunk(2, -1)
    cos, sin = torch.cos(angle), torch.sin(angle)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def block(c, package, w, x, layer, bounds):
    """x [T, D] -> x, states of the layer."""
    import torch
    from torch.nn import functional as F

    def rms(v, weight, eps=c.eps):
        return v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps) * weight

    y = rms(x, w["attn_norm.weight"])
    names = [name for name, _ in gla.projections(c)]
    raw = [F.linear(y, w[f"attn.{name}_proj.weight"]) for name in names]
    state = {"conv": torch.cat(raw, 1).T[:, -3:]} if c.width else {}
    if c.width:
        kernels = [w[f"attn.{name}_conv1d.weight"] for name in names]
        act = (lambda t: t) if c.type == "hgrn2" else F.silu
        raw = [
            act(F.conv1d(F.pad(v.T[None], (c.width - 1, 0)), kernel, groups=len(kernel)))[0].T
            for v, kernel in zip(raw, kernels)
        ]

    def shared(part):
        """[T, KV width] -> [1, T, H, width]: a head of k or v serves several of q."""
        return part.reshape(1, len(x), c.KV, -1).repeat_interleave(c.H // c.KV, 2)

    q, k, v = raw[0].reshape(1, len(x), c.H, -1), shared(raw[1]), shared(raw[2])
    g = torch.zeros_like(k)
    if c.type == "hgrn2":
        q, g = F.silu(q), F.logsigmoid(k)
        if layer > 0:
            low = bounds[layer].reshape(c.H, c.DK)
            g = torch.logaddexp(low.log(), torch.log1p(-low) + g)
        k = 1 - g.exp()
    else:
        map_q, map_k = feature_maps(c, package, w)
        q, k = map_q(q), map_k(k)
    if c.type == "gla":
        gate = F.linear(
            F.linear(y, w["attn.gk_proj.0.weight"]),
            w["attn.gk_proj.1.weight"],
            w["attn.gk_proj.1.bias"],
        )
        g = shared(F.logsigmoid(gate) / c.divisor)
    elif c.type == "simple_gla":
        gate = F.linear(y, w["attn.gk_proj.weight"], w["attn.gk_proj.bias"])
        g = g + (F.logsigmoid(gate) / c.divisor)[None, :, :, None]
    elif c.type == "retnet":
        q, k = rotate(q), rotate(k)
        g = g + torch.log1p(-torch.exp2(-5.0 - torch.arange(c.H, dtype=x.dtype)))[:, None]
    o, state["S"], state["z"] = recur(c, package, q, k, v, g)
    if c.type == "hgrn2":
        o = rms(o.reshape(len(x), -1), w["attn.g_norm.weight"], 1e-5)
    elif c.head_norm:
        o = rms(o, w["attn." + gla.out_norm(c)]).reshape(len(x), -1)
    if c.gate:
        o = o * F.silu(F.linear(y, w["attn.g_proj.weight"]))
    x = x + F.linear(o.reshape(len(x), -1), w["attn.o_proj.weight"])
    y = rms(x, w["mlp_norm.weight"])
    gate = F.linear(y, w["mlp.gate_proj.weight"])
    gate, up = gate.chunk(2, -1) if c.fused_mlp else (gate, F.linear(y, w["mlp.up_proj.weight"]))
    return x + F.linear(F.silu(gate) * up, w["mlp.down_proj.weight"]), state


def by_fla(c, package, tensors, seed, dtype):
    import torch

    w = {n: torch.from_numpy(t.float32()).to(dtype) for n, t in tensors.items()}
    layers = [gla.common.under(w, f"model.layers.{i}.") for i in range(c.layers)]
    bounds = None
    if c.lower_bound:  # fla modeling_hgrn2.py
        bounds = w["model.lower_bounds"].softmax(0)
        bounds = bounds.cumsum(0) - bounds[0]
    out = []
    for tokens in cases.sequences(c.vocab, seed):
        x = w["model.embeddings.weight"][torch.from_numpy(tokens).long()]
        states = []
        for i in range(c.layers):
            x, state = block(c, package, layers[i], x, i, bounds)
            states.append({n: s.squeeze(0).numpy() for n, s in state.items() if s is not None})
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + c.eps) * w["model.norm.weight"]
        head = w["model.embeddings.weight"] if c.tied else w["lm_head.weight"]
        stacked = {n: np.stack([s[n] for s in states]) for n in states[0]}
        stored = gla.stored_states(c, stacked, len(tokens))
        out.append((tokens, (x @ head.T).numpy(), stored))
    return out


def case_config(name):
    config = gla.config_from_dict(CASES[name][0])
    return dataclasses.replace(config, fused_mlp="old_mlp" in name)


def drawn(name):
    """The weights of a case, as its file has them: name -> Tensor."""
    values, seed = CASES[name]
    return cases.stored(random_weights(case_config(name), seed), values)


def make(name, out, package):
    import torch

    values, seed = CASES[name]
    config, tensors = case_config(name), drawn(name)
    equations = [
        (tokens, *gla.run(config, tensors, tokens))
        for tokens in cases.sequences(config.vocab, seed)
    ]
    with torch.no_grad():
        fp32 = by_fla(config, package, tensors, seed, torch.float32)
        with cases.fp64():
            exact = by_fla(config, package, tensors, seed, torch.float64)
    print(
        f"| {name} | {gla.parameters(config):,} | {cases.difference(exact, equations):.1e} | "
        f"{cases.difference(exact, fp32):.1e} |"
    )
    cases.write(out / name, values, tensors, exact)


def main(argv):
    for name in cases.chosen(CASES, argv[2:]):
        make(name, pathlib.Path(argv[0]), argv[1])


if __name__ == "__main__":
    main(sys.argv[1:])

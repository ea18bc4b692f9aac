#pragma once
#include "model/load_model.h"

namespace recurve {

// Defined in the families' own files.
LoadFamily load_delta_net, load_falcon_h1, load_gla, load_granite_hybrid, load_mamba, load_mamba2,
    load_nemotron_h, load_qwen3_5, load_recurrent_gemma, load_rnn, load_rwkv7, load_xlstm,
    load_xlstm_blocks;

// Every family there is: the names that its configs have under model_type, and its function.
inline constexpr Family kFamilies[] = {
    {{"xlstm"}, load_xlstm},
    {{"mamba", "falcon_mamba"}, load_mamba},
    {{"mamba2"}, load_mamba2},
    {{"gla", "simple_gla", "retnet", "linear_attn", "hgrn2"}, load_gla},
    {{"xlstm_blocks"}, load_xlstm_blocks},
    {{"rnn"}, load_rnn},
    {{"rwkv7"}, load_rwkv7},
    {{"delta_net", "gated_deltanet"}, load_delta_net},
    {{"recurrent_gemma"}, load_recurrent_gemma},
    {{"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next"}, load_qwen3_5},
    {{"granitemoehybrid"}, load_granite_hybrid},
    {{"nemotron_h"}, load_nemotron_h},
    {{"falcon_h1"}, load_falcon_h1},
};

// Model types that are only partly supported, and what is missing.
struct Incomplete {
  std::string_view model_type;
  std::string_view missing;
};

inline constexpr Incomplete kIncomplete[] = {
    {"bamba", "Mamba-2 and attention are supported, but not combined as in its layers"},
    {"jamba", "Mamba, attention and experts are supported, but not combined as in its layers"},
    {"lfm2", "attention is supported, but not its gated short convolutions"},
    {"zamba2", "Mamba-2 is supported, but not attention that layers share"},
    {"olmo_hybrid",
     "the gated delta rule and attention are supported, but not its norms after attention"},
    {"kimi_linear",
     "the delta rule with decays of channels and experts are supported, but not latent attention "
     "and low-rank gates"},
    {"kda", "the delta rule with decays of channels is supported, but not its low-rank gates"},
    {"rwkv", "of RWKV, only version 7 is supported"},
    {"rwkv5", "of RWKV, only version 7 is supported"},
    {"rwkv6", "of RWKV, only version 7 is supported"},
    {"rwkv6qwen2",
     "it is Qwen2 distilled into RWKV-6; of RWKV, only version 7 is supported"},  // QRWKV6
};

}  // namespace recurve

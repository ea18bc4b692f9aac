#pragma once
#include "model/load_model.h"

namespace recurve {

// Defined in the families' own files.
LoadFamily load_gla, load_mamba, load_mamba2, load_rnn, load_rwkv7, load_xlstm, load_xlstm_blocks;

// Every family there is: the names that its configs have under model_type, and its function.
inline constexpr Family kFamilies[] = {
    {{"xlstm"}, load_xlstm},
    {{"mamba", "falcon_mamba"}, load_mamba},
    {{"mamba2"}, load_mamba2},
    {{"gla", "simple_gla", "retnet", "linear_attn", "hgrn2"}, load_gla},
    {{"xlstm_blocks"}, load_xlstm_blocks},
    {{"rnn"}, load_rnn},
    {{"rwkv7"}, load_rwkv7},
};

}  // namespace recurve

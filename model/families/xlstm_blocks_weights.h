#pragma once
#include <string>

#include "model/families/xlstm_blocks_config.h"
#include "model/layers/host_matrix.h"
#include "model/layers/token_weights.h"

namespace recurve::xlstm_blocks {

struct MlstmWeights {
  LinearWeights up;                      // (2 inner, D): x, then z; maybe with bias
  VectorWeights conv;                    // (inner, width), empty: no convolution
  VectorWeights conv_bias;               // (inner)
  HostMatrix q, k, v;                    // (inner, block): block-diagonal
  VectorWeights q_bias, k_bias, v_bias;  // (inner), empty: none
  LinearWeights gates;                   // (2 H, 3 inner): i, then f, of q, k, v; with bias
  VectorWeights head_norm;               // (inner)
  VectorWeights skip;                    // (inner)
  LinearWeights down;                    // (D, inner), maybe with bias
};

struct SlstmWeights {
  VectorWeights conv;       // (D, width), empty: no convolution
  VectorWeights conv_bias;  // (D)
  HostMatrix i, f, z, o;    // (D, DH): a matrix a head
  HostMatrix R;             // (H 4 DH, DH)
  VectorWeights bias;       // (4, H, DH)
  VectorWeights head_norm;  // (D)
  VectorWeights ffn_norm;   // (D)
  LinearWeights ffn_up;     // (2 F, D): gate, then up
  LinearWeights ffn_down;   // (D, F)
};

// One of the two kinds of weights is there.
struct Block {
  VectorWeights norm;  // (D)
  MlstmWeights mlstm;
  SlstmWeights slstm;
  size_t first_state;  // place of its arrays in the layout
};

// prefix: of the block's tensors. first_state is left for the caller.
Block load_block(const Config& c, Checkpoint& checkpoint, Backend& backend,
                 const std::string& prefix, bool is_slstm, const WeightFormats& formats);

// Norm weights are stored as what is added to one (components/ln.py, residual_weight). (size)
VectorWeights load_norm(Checkpoint& checkpoint, Backend& backend, const std::string& name,
                        int64_t size);

void add_to(WeightTally& tally, const Block& block);

}  // namespace recurve::xlstm_blocks

#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/ops/activation.h"
#include "model/weights/checkpoint.h"

namespace recurve::xlstm_blocks {

// The config.json of a research xLSTM.
struct Config {
  int64_t D, blocks, vocab;
  std::vector<bool> slstm;  // of each block
  int chunk;
  DType state;  // of C
  bool tied, out_norm;
  bool bias, ffn_bias;  // of the linear layers of mLSTM blocks, of the feed-forward layers
  // mLSTM blocks: inner width, heads, size of a projection's blocks, width of the convolution.
  int64_t inner, H, block, width;
  // sLSTM blocks: heads, width of the convolution (0: none), feed-forward width (0: none).
  int64_t slstm_H, slstm_width, F;
  Activation ffn_activation;
  bool transposed_R;  // the layout of the "cuda" backend; otherwise that of "vanilla"

  bool any(bool is_slstm) const {
    return std::find(slstm.begin(), slstm.end(), is_slstm) != slstm.end();
  }
};

// Throws std::runtime_error with one sentence: file, key, wanted, found.
Config read_config(const Checkpoint& checkpoint);

}  // namespace recurve::xlstm_blocks

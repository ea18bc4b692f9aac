#pragma once
#include <cstdint>
#include <vector>

#include "model/weights/checkpoint.h"

namespace recurve::xlstm {

// The config.json of a xLSTM-large.
struct Config {
  int64_t D, blocks, H, DK, DV, F, vocab;
  float norm_eps, cell_eps, gate_soft_cap, logit_soft_cap;
  int chunk;
  bool tied, fused;
  bool sigmoid_gate;  // of the input; otherwise exponential
  bool normaliser;    // always with the exponential gate
  DType state;        // of C

  int64_t qk() const { return H * DK; }
  int64_t v() const { return H * DV; }
  int64_t projected() const { return 2 * (qk() + v() + H); }  // q, k, v, o, i, f
  std::vector<const char*> states() const {
    if (!sigmoid_gate) return {"C", "n", "m"};
    return normaliser ? std::vector<const char*>{"C", "n"} : std::vector<const char*>{"C"};
  }
};

// Throws std::runtime_error with one sentence: file, key, wanted, found.
Config read_config(const Checkpoint& checkpoint);

}  // namespace recurve::xlstm

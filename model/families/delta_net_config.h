#pragma once
#include <cstdint>
#include <string>

#include "kernels/ops/activation.h"
#include "kernels/ops/delta_gate.h"
#include "kernels/ops/delta_rule.h"
#include "model/weights/checkpoint.h"

namespace recurve::delta_net {

// The config.json of fla's DeltaNet and Gated DeltaNet.
struct Config {
  std::string type;  // the model_type
  int64_t D, blocks, F, vocab;
  int64_t H;   // heads of values
  int64_t HK;  // heads of queries and keys
  int64_t DK, DV;
  int64_t width;  // of the short convolution; 0: none
  float eps;
  float beta_scale;       // 1, or 2 where a key's part may change its sign
  Activation activation;  // of queries and keys; values have silu
  DeltaNorm norm;         // of queries and keys
  Activation gate;        // of the output gate: kSilu or kSigmoid
  bool tied, output_gate, has_beta;
  int chunk;
  DType state;  // of S

  bool gated() const { return type == "gated_deltanet"; }
  DeltaDecay decay() const { return gated() ? DeltaDecay::kToken : DeltaDecay::kNone; }
  bool bounded_beta() const { return beta_scale <= 1; }
  int64_t qk() const { return HK * DK; }
  int64_t out() const { return H * DV; }
  int64_t mixed() const { return 2 * qk() + out(); }  // what a convolution sees: q, k, v
  // q, k, v, output gate, beta, decays.
  int64_t projected() const {
    return mixed() + (output_gate ? out() : 0) + (has_beta ? H : 0) + (gated() ? H : 0);
  }
};

// Throws std::runtime_error with one sentence: file, key, wanted, found.
Config read_config(const Checkpoint& checkpoint);

}  // namespace recurve::delta_net

#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/ops/activation.h"
#include "kernels/ops/delta_gate.h"
#include "kernels/ops/delta_rule.h"
#include "model/layers/residual.h"
#include "model/layers/token_weights.h"

namespace recurve {

// The sizes and choices of a mixer with a delta rule.
struct DeltaMixerConfig {
  int64_t D = 0;   // width of the residual stream
  int64_t H = 0;   // heads of values
  int64_t HK = 0;  // heads of queries and keys
  int64_t DK = 0, DV = 0;
  int64_t width = 0;                          // of the short convolution; 0: none
  float eps = 0;                              // of the norms
  float beta_scale = 1;                       // 1, or 2 where a key's part may change its sign
  Activation activation = Activation::kSilu;  // of queries and keys; values have silu
  DeltaNorm norm = DeltaNorm::kLength;        // of queries and keys
  Activation gate = Activation::kSilu;        // of the output gate: kSilu or kSigmoid
  bool gated = false, output_gate = false, has_beta = true;  // gated: states decay
  int chunk = 0;                                             // the grid of prompts
  DType state = DType::kF32;                                 // of S

  DeltaDecay decay() const { return gated ? DeltaDecay::kToken : DeltaDecay::kNone; }
  bool bounded_beta() const { return beta_scale <= 1; }
  int64_t qk() const { return HK * DK; }
  int64_t out() const { return H * DV; }
  int64_t mixed() const { return 2 * qk() + out(); }  // what a convolution sees: q, k, v
  // q, k, v, output gate, beta, decays.
  int64_t projected() const {
    return mixed() + (output_gate ? out() : 0) + (has_beta ? H : 0) + (gated ? H : 0);
  }
};

struct DeltaMixerWeights {
  VectorWeights norm;        // (D)
  LinearWeights projection;  // (projected, D)
  VectorWeights conv;        // (mixed, width)
  VectorWeights A;           // (H) -exp(A_log), if gated
  VectorWeights dt_bias;     // (H) the same
  VectorWeights out_norm;    // (DV)
  LinearWeights out;         // (D, H DV)

  Residual::Reader reader() const { return {projection.matrix(), &norm}; }
};

void add_to(WeightTally& tally, const DeltaMixerWeights& weights);

// Activations of one step.
struct DeltaMixerScratch {
  float* projected;  // (rows, projected)
  float* mixed;      // (rows, mixed) after the convolution, if there is one
  float* beta;       // (rows, H)
  float* g;          // (rows, H) log decays, if there are any
  float* o;          // (rows, H DV)
  float* spare;      // (rows, spare_width) that nothing uses meanwhile
  int64_t spare_width;

  // Of the first five, in their order.
  static std::vector<int64_t> widths(const DeltaMixerConfig& config);
};

// The state of one layer.
struct DeltaMixerState {
  StateData S;  // (slots, H, DK, DV)
  float* conv;  // (slots, mixed, width - 1), or null without a convolution
};

// Throws MissingKernels if the backend cannot compute it.
void check_delta_mixer(const DeltaMixerConfig& config, Backend& backend, std::string_view family);

// The arrays of a layer's state: S, then conv if there is one.
void add_arrays(const DeltaMixerConfig& config, int layer, StateLayout& layout);

// x += Wout(gated norm of the rule's outputs). next: the layer that reads x after it.
void delta_mixer(const DeltaMixerConfig& config, const DeltaMixerWeights& weights,
                 const Ragged& seqs, const DeltaMixerState& state, const DeltaMixerScratch& scratch,
                 Residual& x, const Residual::Reader& next, const Kernels& kernels, Stream& stream);

}  // namespace recurve

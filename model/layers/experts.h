#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/arena.h"
#include "model/layers/residual.h"
#include "model/layers/token_weights.h"

namespace recurve {

// The sizes and choices of feed-forward layers of experts, of which each token goes to some.
struct ExpertsConfig {
  int64_t D = 0;    // width of the residual stream
  int64_t E = 0;    // experts; 0: no such layers
  int64_t top = 0;  // experts of a token
  int64_t F = 0;    // width of an expert
  // Of the experts of a token, the weights sum to one; else they are shares of all experts.
  bool renormalised = true;
  int64_t shared = 0;        // width of an expert that all tokens go to; 0: none
  bool shared_gate = false;  // it is multiplied with the sigmoid of a row of the router
  float eps = 0;             // of the norm

  int64_t routed() const { return E + shared_gate; }  // rows of the router
};

// y = RMSNorm(x): x += sum over the token's experts of weight * Wdown( silu(Wgate y) * (Wup y) ),
// and the same of the shared expert, with the weight 1 or its gate.
struct ExpertsWeights {
  VectorWeights norm;         // (D)
  LinearWeights router;       // (routed, D)
  LinearWeights up;           // (E 2 F, D): of each expert gate rows, then up rows
  LinearWeights down;         // (E D, F)
  LinearWeights shared_up;    // (2 shared, D)
  LinearWeights shared_down;  // (D, shared)

  // No linear layer reads x, so nothing of the norm is deferred to one.
  Residual::Reader reader() const { return {{}, &norm}; }
};

// Names of the tensors in a checkpoint.
struct ExpertsNames {
  std::string router, shared_gate;
  std::string up, down;  // (E, 2 F, D) and (E, D, F) of all experts, if there is a tensor `up`
  // Else those of one expert: each prefix, its number, and the rest.
  std::string expert, gate_of_one, up_of_one, down_of_one;
  std::vector<std::string> shared_up;  // stacked
  std::string shared_down;
};
ExpertsWeights load_experts(const ExpertsConfig& config, Checkpoint& checkpoint, Backend& backend,
                            const ExpertsNames& names, VectorWeights norm,
                            const WeightFormats& formats);

void add_to(WeightTally& tally, const ExpertsWeights& weights);

// Activations of one step.
struct ExpertsScratch {
  float* hidden;    // (rows top, F)
  float* y;         // (rows, D)
  float* logits;    // (rows, routed)
  float* weight;    // (rows, top)
  int32_t* expert;  // (rows, top)
  int32_t* pair;    // (rows top)
  float* shared;    // (rows, shared)
  float* gate;      // (rows) of the shared expert
  int32_t* begin;   // (E + 1)

  // Floats of a row of the first eight, in their order.
  static std::vector<int64_t> widths(const ExpertsConfig& config);
  // Of the arena, in addition to these.
  static size_t bytes_for(const ExpertsConfig& config);
  // a: rows of these widths.
  static ExpertsScratch of(const ExpertsConfig& config, const std::vector<float*>& a, Arena& arena);
};

// Throws MissingKernels if the backend cannot compute it.
void check_experts(const ExpertsConfig& config, Backend& backend, std::string_view family);

// next: the layer that reads x after it.
void experts(const ExpertsConfig& config, const ExpertsWeights& weights, int rows,
             const ExpertsScratch& scratch, Residual& x, const Residual::Reader& next,
             const Kernels& kernels, Stream& stream);

}  // namespace recurve

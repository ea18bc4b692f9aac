#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops/ssd.h"
#include "model/layers/residual.h"
#include "model/layers/token_weights.h"
#include "model/weights/config_reader.h"

namespace recurve {

// The sizes and choices of Mamba-2's mixer: one multi-head state space, with a gated norm of each
// group or a gate alone. The scales multiply outputs of in_proj: those of x, B and C in the weights
// of the convolution, whose state has its inputs without them.
struct SsdMixerConfig {
  int64_t D = 0;                 // width of the residual stream
  int64_t H = 0, P = 0;          // heads and their channels
  int64_t G = 0, N = 0;          // groups of B and C; size of a state
  int64_t width = 0;             // of the convolution
  float eps = 0, gate_eps = 0;   // of the norm before the mixer, and of the gated one
  float dt_min = 0, dt_max = 0;  // limits of the time step
  bool bias = false, conv_bias = true;
  bool gate_norm = true;  // a norm of what is gated
  float x_scale = 1, B_scale = 1, C_scale = 1, dt_scale = 1;
  float out_scale = 1;        // of what out_proj reads
  int chunk = 0;              // the grid of prompts
  DType state = DType::kF32;  // of h
  int written_every = 1;      // h: HeldRows::every

  int64_t inner() const { return H * P; }
  int64_t conv_width() const { return inner() + 2 * G * N; }
  int64_t projected() const { return inner() + conv_width() + H; }
  bool row_norm() const { return gate_norm && G == 1; }  // the norm is of whole rows
};

struct SsdMixerWeights {
  VectorWeights norm;       // (D)
  LinearWeights in;         // (projected, D): z, x, B, C, dt
  VectorWeights conv;       // (conv_width, width)
  VectorWeights conv_bias;  // (conv_width), or empty
  VectorWeights dt_bias;    // (H)
  VectorWeights A;          // (H) -exp(A_log)
  VectorWeights skip;       // (H)
  VectorWeights gate_norm;  // (inner), or empty
  LinearWeights out;        // (D, inner)

  Residual::Reader reader() const { return {in.matrix(), &norm}; }
};

// prefix: of in_proj, conv1d, dt_bias, A_log, D, norm and out_proj. norm: the weights of the norm
// before the mixer, which the family loads.
SsdMixerWeights load_ssd_mixer(const SsdMixerConfig& config, Checkpoint& checkpoint,
                               Backend& backend, const std::string& prefix, VectorWeights norm,
                               const WeightFormats& formats);

void add_to(WeightTally& tally, const SsdMixerWeights& weights);

// Activations of one step.
struct SsdMixerScratch {
  float* zxBCdt;  // (rows, projected)
  float* xBC;     // (rows, conv_width) after the convolution
  float* v;       // (rows, H, P) out of the state space, gated

  // In their order.
  static std::vector<int64_t> widths(const SsdMixerConfig& config);
};

// The state of one layer.
struct SsdMixerState {
  float* conv;    // (slots, conv_width, width - 1)
  StateData h;    // (slots, H, P, N)
  HeldRows held;  // next to h, as in SsdArgs
  float* held_u = nullptr;
  float* held_B = nullptr;
  float* held_a = nullptr;

  // first: the first of the layer's arrays.
  static SsdMixerState of(const SsdMixerConfig& config, const StatePool& states, size_t first,
                          const HeldRows& held);
};

// Throws MissingKernels if the backend cannot compute it.
void check_ssd_mixer(const SsdMixerConfig& config, Backend& backend, std::string_view family);

// The arrays of a layer's state: conv, then h, and where that is written once in several rows what
// lies next to it.
void add_arrays(const SsdMixerConfig& config, int layer, StateLayout& layout);
size_t state_arrays(const SsdMixerConfig& config);

// x += Wout(gated norm of the state space's outputs), or of these gated alone. next: the layer that
// reads x after it.
void ssd_mixer(const SsdMixerConfig& config, const SsdMixerWeights& weights, const Ragged& seqs,
               const SsdMixerState& state, const SsdMixerScratch& scratch, Residual& x,
               const Residual::Reader& next, const Kernels& kernels, Stream& stream);

// The limits of a time step under a key of a config, two numbers; from 0 without end if it has
// none.
void read_time_step_limits(ConfigReader& read, const nlohmann::json& config, const char* key,
                           SsdMixerConfig& c);

}  // namespace recurve

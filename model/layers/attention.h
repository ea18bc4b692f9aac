#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops/paged_attention.h"
#include "model/layers/residual.h"
#include "model/layers/rotary.h"
#include "model/layers/token_weights.h"
#include "model/weights/config_reader.h"

namespace recurve {

// The sizes and choices of a layer of attention over all tokens of a session.
struct AttentionConfig {
  int64_t D = 0;     // width of the residual stream
  int64_t H = 0;     // heads of queries
  int64_t HK = 0;    // heads of keys and values, which as many heads of queries share
  int64_t head = 0;  // channels of a head
  float scale = 0;   // of products
  float eps = 0;     // of the norms
  bool bias = false;
  bool head_norms = false;   // of queries and keys, of unit offset
  bool output_gate = false;  // q_proj has for each head its queries, then its gate
  Rotary rotary = {};        // no channels: positions turn nothing
  DType kv = DType::kBF16;   // of keys and values in the state

  int64_t queries() const { return H * head; }
  int64_t keys() const { return HK * head; }
  int64_t q_rows() const { return output_gate ? 2 * queries() : queries(); }  // of q_proj
  int64_t projected() const { return q_rows() + 2 * keys(); }                 // q, k, v
};

// What a family's configs mean where they do not say it.
struct AttentionHeads {
  std::optional<int64_t> H;     // none: the config has to say it
  std::optional<int64_t> HK;    // none: as many as H
  std::optional<int64_t> head;  // none: the channels of D / H, which the config cannot change
};

// Sets H, HK and head of `config`, which has D, from num_attention_heads, num_key_value_heads and
// head_dim or attention_head_dim.
void read_attention_heads(ConfigReader& read, const AttentionHeads& defaults,
                          AttentionConfig& config);

struct AttentionWeights {
  VectorWeights norm;            // (D)
  LinearWeights projection;      // (projected, D)
  VectorWeights q_norm, k_norm;  // (head), if there are norms of heads
  LinearWeights out;             // (D, H head)

  Residual::Reader reader() const { return {projection.matrix(), &norm}; }
};

// prefix: of q_proj, k_proj, v_proj, o_proj, q_norm and k_norm. norm: the weights of the layer's
// norm, which the family loads.
AttentionWeights load_attention(const AttentionConfig& config, Checkpoint& checkpoint,
                                Backend& backend, const std::string& prefix, VectorWeights norm,
                                const WeightFormats& formats);

void add_to(WeightTally& tally, const AttentionWeights& weights);

// Activations of one step.
struct AttentionScratch {
  float* projected;         // (rows, projected)
  float* q;                 // (rows, H head)
  float* k;                 // (rows, HK head)
  float* o;                 // (rows, H head)
  const int32_t* position;  // (rows) in the session
  const float* frequency;   // (rotary.channels / 2), or null

  // Of the first four, in their order.
  static std::vector<int64_t> widths(const AttentionConfig& config);
};

// The state of one layer.
struct AttentionState {
  PagedData keys, values;  // (HK, head) a token
};

// Throws MissingKernels if the backend cannot compute it.
void check_attention(const AttentionConfig& config, Backend& backend, std::string_view family);

// The arrays of a layer's state: keys, then values.
void add_arrays(const AttentionConfig& config, int layer, StateLayout& layout);

// x += Wo(attention). next: the layer that reads x after it.
void attention(const AttentionConfig& config, const AttentionWeights& weights, const Ragged& seqs,
               const AttentionState& state, const AttentionScratch& scratch, Residual& x,
               const Residual::Reader& next, const Kernels& kernels, Stream& stream);

}  // namespace recurve

#pragma once
#include <string>
#include <vector>

#include "model/layers/head.h"
#include "model/model.h"
#include "model/weights/checkpoint.h"
#include "model/weights/linear_weights.h"

namespace recurve {

// What stands before the first block and after the last: the embedding, the last norm and the
// matrix of the logits.
struct TokenWeights {
  LinearWeights embedding;  // (V, D)
  VectorWeights norm;       // (D)
  LinearWeights lm_head;    // (V, D); empty where the embedding serves

  const Matrix& head_matrix() const {
    return lm_head.matrix().N > 0 ? lm_head.matrix() : embedding.matrix();
  }
};

// The embedding is called embeddings, embedding or embed_tokens; lm_head stands without a prefix or
// with the outermost part of it. tied: the head is the embedding, and an lm_head.weight beside it
// is not looked at.
TokenWeights load_token_weights(Backend& backend, Checkpoint& checkpoint, const std::string& prefix,
                                const std::string& norm_name, int64_t V, int64_t D, bool tied,
                                DType dtype);

// Whether any name of the head's matrix exists; never for random weights.
bool has_lm_head(const Checkpoint& checkpoint);

// Adds up the size of a model.
struct WeightTally {
  int64_t parameters = 0;
  int64_t bytes = 0;

  void add(const LinearWeights& weights);
  void add(const VectorWeights& weights);
  void add(const TokenWeights& weights);
};

}  // namespace recurve

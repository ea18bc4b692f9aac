#pragma once
#include <string>
#include <vector>

#include "model/layers/head.h"
#include "model/model.h"
#include "model/weights/checkpoint.h"
#include "model/weights/linear_weights.h"

namespace recurve {

// Which tensor the matrix of the logits is.
struct HeadSource {
  bool is_embedding = false;
  std::string words;  // for the start-up table
};

// tied: the config names the embedding as the head. The file takes precedence: where it has a
// head with other values, that is the head, as in transformers, which ties what is equal or absent.
// The names of a head that is not used may then be there. names: of the head.
HeadSource find_head(Checkpoint& checkpoint, const std::string& embedding,
                     const std::vector<std::string>& names, bool tied);

// What stands before the first block and after the last: the embedding, the last norm and the
// matrix of the logits.
struct TokenWeights {
  LinearWeights embedding;  // (V, D)
  VectorWeights norm;       // (D)
  LinearWeights lm_head;    // (V, D); empty where the embedding serves
  std::string head_source;  // of HeadSource, in words

  const Matrix& head_matrix() const {
    return lm_head.matrix().N > 0 ? lm_head.matrix() : embedding.matrix();
  }
};

// The embedding is called embeddings, embedding or embed_tokens; lm_head stands without a prefix or
// with the outermost part of it. norm_name: empty if the family loads that norm itself. tied: what
// the config says, see find_head().
TokenWeights load_token_weights(Backend& backend, Checkpoint& checkpoint, const std::string& prefix,
                                const std::string& norm_name, int64_t V, int64_t D, bool tied,
                                const WeightFormats& formats);

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

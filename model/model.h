#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/arena.h"
#include "kernels/backend.h"
#include "model/state/state_layout.h"
#include "model/state/state_pool.h"

namespace recurve {

// An id that ends an answer according to a file of the checkpoint.
struct EndId {
  int32_t id;
  std::string file;         // "generation_config.json"
  bool is_default = false;  // upstream's default, written where it was not set: may mean nothing
};

// What there is to know about a loaded model.
struct ModelInfo {
  std::string family;       // "xlstm"
  std::string description;  // "6 blocks, width 320, 4 heads of 40 x 80"
  std::string head;         // which tensor the output matrix is, in words
  int64_t vocab = 0;        // rows of the output matrix; ids of tokens are below it
  int64_t width = 0;        // of the last hidden state, D; 0: the model does not give it
  int64_t parameters = 0;
  int64_t weight_bytes = 0;  // resident or mapped
  // Weights in int4 cost a measured model of this family more than 1 % of a text's bits per byte.
  bool prefers_int8 = false;
  // Rows after which prompts may be cut between steps without changing a bit of the result.
  int chunk = 1;
  int64_t most_tokens = 0;  // of a session, by the config; 0: it names no bound
  // The special tokens of config.json and generation_config.json; the server checks them
  // against the tokenizer.
  std::optional<int32_t> bos;
  std::vector<EndId> eos;
  bool force_bos = false;  // every text begins with BOS
};

// One engine step: some sequences bring a chunk of prompt, others one token each.
struct StepBatch {
  Ragged seqs;
  const int32_t* tokens = nullptr;  // (seqs.rows), in the memory of the backend
  int num_logits = 0;
  // (num_logits) rows whose logits are wanted, ascending, none twice; in the same memory
  const int32_t* logit_rows = nullptr;
  int num_hidden = 0;
  // (num_hidden) rows whose last hidden state, after the final norm, is wanted, ascending
  const int32_t* hidden_rows = nullptr;
  float* hidden = nullptr;  // (num_hidden, width), where they are written
};

// The largest step there will be.
struct StepLimits {
  int rows = 0;
  int logits = 0;
};

// Weights and the order of computation; nothing else. Constant after construction and safe to share
// between threads: what changes lives in the pool and the arena that the caller passes in.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelInfo& info() const = 0;
  virtual StateLayout state_layout() const = 0;
  virtual size_t arena_bytes(const StepLimits& limits) const = 0;
  // Advances the states of batch.seqs by their rows and writes the logits and the last
  // hidden states of the rows asked for.
  virtual void forward(const StepBatch& batch, const StatePool& states, Arena& arena,
                       Stream& stream, float* logits /* (num_logits, vocab) */) const = 0;
};

}  // namespace recurve

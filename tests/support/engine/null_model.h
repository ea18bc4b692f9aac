#pragma once
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

#include "model/model.h"

namespace recurve::testing {

// A model without weights, for host backends: what it says next is a hash of all that its state has
// absorbed, so a mixed-up slot, state, row or order of tokens changes the tokens that follow. It is
// as sensitive to cuts as the real ones: a prompt gives the same only if it is cut at multiples of
// the chunk. A row of logits costs one pass of memset.
class NullModel final : public Model {
 public:
  struct Options {
    int chunk = 8;
    // A state that has absorbed this id gives NaN from then on. The model never proposes it. -1:
    // there is none.
    int32_t poison = -1;
    int64_t ballast = 0;  // further floats of a state, which nothing changes
    // Called with every step before it is computed.
    std::function<void(const StepBatch&)> on_step = {};
  };

  explicit NullModel(int32_t vocab) : NullModel(vocab, Options{}) {}
  NullModel(int32_t vocab, Options options) : options_(std::move(options)) {
    info_.family = "null";
    info_.description = "no weights, next token by hash";
    info_.vocab = vocab;
    info_.chunk = options_.chunk;
  }

  const ModelInfo& info() const override { return info_; }

  StateLayout state_layout() const override {
    // Whole numbers as the bits of floats, which is what states are written as.
    StateLayout layout{.arrays = {{.name = "hash", .layer = 0, .shape = {2}},
                                  {.name = "poisoned", .layer = 0, .shape = {1}}}};
    if (options_.ballast > 0) layout.arrays.push_back({.name = "b", .shape = {options_.ballast}});
    return layout;
  }

  size_t arena_bytes(const StepLimits& limits) const override {
    return Arena::bytes_for(static_cast<size_t>(limits.rows));
  }

  void forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream&,
               float* logits) const override {
    if (options_.on_step) options_.on_step(batch);
    arena.reset();
    float* said = arena.floats(static_cast<size_t>(batch.seqs.rows));  // (rows) bits of the hash
    for (int b = 0; b < batch.seqs.num_seqs; ++b) absorb(batch, b, states, said);
    for (int r = 0; r < batch.num_logits; ++r) {
      write_row(std::bit_cast<uint32_t>(said[batch.logit_rows[r]]), logits + r * info_.vocab);
    }
  }

 private:
  static constexpr uint32_t kPoisoned = 0;
  static constexpr uint32_t kFinite = 0x3FFFFFFF;  // the bits of floats that survive any copy
  static constexpr int kPeaks = 6;                 // ids that stand out of a row

  static uint64_t mix(uint64_t hash, uint64_t value) {
    // The finaliser of SplitMix64.
    uint64_t x = (hash ^ value) + 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    // The bits of two floats, which are finite as those of every state: exponents are not all ones.
    for (const int word : {0, 32}) {
      if ((x >> word & 0x7F80'0000) == 0x7F80'0000) x ^= uint64_t{0x80'0000} << word;
    }
    return x;
  }

  void absorb(const StepBatch& batch, int b, const StatePool& states, float* said) const {
    const auto slot = static_cast<size_t>(batch.seqs.slot[b]);
    int32_t* stored = states.array<int32_t>(0) + 2 * slot;  // (2)
    int32_t* poisoned = states.array<int32_t>(1) + slot;    // (1)
    uint64_t hash;
    std::memcpy(&hash, stored, sizeof hash);
    for (int row = batch.seqs.begin[b]; row < batch.seqs.begin[b + 1]; ++row) {
      if ((row - batch.seqs.begin[b]) % options_.chunk == 0) hash = mix(hash, kChunkBegins);
      hash = mix(hash, static_cast<uint64_t>(batch.tokens[row]) + 1);
      if (batch.tokens[row] == options_.poison) *poisoned = 1;
      said[row] =
          std::bit_cast<float>(*poisoned ? kPoisoned : (static_cast<uint32_t>(hash) & kFinite) | 1);
    }
    std::memcpy(stored, &hash, sizeof hash);
  }

  void write_row(uint32_t said, float* row /* (vocab) */) const {
    std::memset(row, 0, static_cast<size_t>(info_.vocab) * sizeof(float));
    if (said == kPoisoned) {
      row[0] = std::numeric_limits<float>::quiet_NaN();
      return;
    }
    for (int peak = 1; peak <= kPeaks; ++peak) {
      auto id = static_cast<int32_t>(mix(said, static_cast<uint64_t>(peak)) %
                                     static_cast<uint64_t>(info_.vocab));
      if (id == options_.poison) id = id == 0 ? 1 : id - 1;
      row[id] = 4.0f + 0.5f * static_cast<float>(peak);
    }
  }

  static constexpr uint64_t kChunkBegins = 0x5EED;
  const Options options_;
  ModelInfo info_;
};

}  // namespace recurve::testing

#pragma once
#include <cstdint>
#include <vector>

#include "model/layers/rotary.h"
#include "model/weights/checkpoint.h"

namespace recurve::recurrent_gemma {

// The values of config.json.
struct Config {
  int64_t D, F, vocab;
  int64_t H;     // heads of queries, and blocks of the recurrence's gates
  int64_t HK;    // heads of keys and values
  int64_t head;  // channels of a head of attention
  Rotary rotary;
  int64_t lru;                // channels of the recurrence
  int64_t width;              // of the convolution
  int64_t window;             // rows that attention sees
  std::vector<bool> attends;  // of each block: whether it is attention, or else the recurrence
  float eps, soft_cap;
  bool tied, attention_bias;
  int chunk;

  int64_t blocks() const { return static_cast<int64_t>(attends.size()); }
  int64_t qkv() const { return (H + 2 * HK) * head; }
};

// Throws std::runtime_error with one sentence: file, key, wanted, found.
Config read_config(const Checkpoint& checkpoint);

}  // namespace recurve::recurrent_gemma

#pragma once
#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace recurve {

// Which tokens a sequence has seen, for the penalties: whether in its prompt (for a session:
// everything absorbed before this request too), and how often in the answer so far.
//
// A bit for each id up to the largest one seen, and a small open-addressed table of what the answer
// has: bounded by the vocabulary, whatever the length of the session, and between requests, when
// sessions keep it by the thousand, most_bytes() at most. Copy it to fork a sequence. Not
// thread-safe.
class TokenHistory {
 public:
  // id >= 0.
  void add_prompt(int32_t id);
  void add_prompt(std::span<const int32_t> ids);
  void add_generated(int32_t id);

  // What was generated is part of the context now, as it would be had the client sent it all as one
  // prompt.
  void end_request();

  // Calls seen(id) for each id of the prompt, in order.
  template <typename Seen>
  void for_each_in_prompt(const Seen& seen) const {
    for (size_t w = 0; w < prompt_.size(); ++w) {
      for (uint64_t left = prompt_[w]; left != 0; left &= left - 1) {
        seen(static_cast<int32_t>(64 * w) + std::countr_zero(left));
      }
    }
  }
  struct Generated {
    int32_t id;
    uint32_t times;
  };
  // In order of first occurrence.
  std::span<const Generated> generated() const { return generated_; }

  // What is kept between two requests, to be serialized and read again: a bit for each id seen.
  std::span<const uint64_t> words() const { return prompt_; }
  static TokenHistory of(std::vector<uint64_t> words) {
    TokenHistory history;
    history.prompt_ = std::move(words);
    return history;
  }

  // Memory in addition to the object, now, and after end_request() where all ids are below `vocab`.
  size_t bytes() const;
  static size_t most_bytes(int32_t vocab) {
    return (static_cast<size_t>(vocab) + 63) / 64 * sizeof(uint64_t);
  }

 private:
  // Where `id` is, or the empty place it would take. The table must not be empty.
  uint32_t index_of(int32_t id) const;
  void grow();

  std::vector<uint64_t> prompt_;  // bit `id`: it has been seen
  std::vector<Generated> generated_;
  std::vector<int32_t> table_;  // (2^k >= 2 * generated): index into generated_, or -1
};

}  // namespace recurve

#pragma once
#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace recurve {

// The tokens of a sequence, for the penalties: which ids are in its prompt (of a session: in all
// that it has absorbed before this request), and how often each is in the answer so far. A bit for
// each id up to the largest one seen, and an open-addressed table of the answer's ids. The size is
// bounded by the vocabulary, and between requests by most_bytes(), as every session stores one.
// Copy it to fork a sequence. Not thread-safe.
class TokenHistory {
 public:
  // id >= 0.
  void add_prompt(int32_t id);
  void add_prompt(std::span<const int32_t> ids);
  void add_generated(int32_t id);

  // Makes the generated tokens part of the prompt, as if the client had sent them.
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

  // Whether each id of the prompt is in `ids`, a bit for each id. Between two requests.
  bool is_within(std::span<const uint64_t> ids) const;

  // The serialized form between two requests: a bit for each id seen.
  std::span<const uint64_t> words() const { return prompt_; }
  static TokenHistory of(std::vector<uint64_t> words) {
    TokenHistory history;
    history.prompt_ = std::move(words);
    return history;
  }

  // Allocated memory: now, and the maximum after end_request() with ids below `vocab`.
  size_t bytes() const;
  static size_t most_bytes(int32_t vocab) {
    return (static_cast<size_t>(vocab) + 63) / 64 * sizeof(uint64_t);
  }

 private:
  // The table index of `id`, or the empty entry for it. The table must not be empty.
  uint32_t index_of(int32_t id) const;
  void grow();

  std::vector<uint64_t> prompt_;  // bit `id`: it has been seen
  std::vector<Generated> generated_;
  std::vector<int32_t> table_;  // (2^k >= 2 * generated): index into generated_, or -1
};

}  // namespace recurve

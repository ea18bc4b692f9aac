#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace recurve {

// Which tokens a sequence has seen, for the penalties: how often in its prompt (for a session:
// everything absorbed before this request too), and how often in the answer so far.
//
// A small open-addressed table: memory grows with the distinct tokens seen, so it is bounded by the
// vocabulary and not by the length of the session. Copy it to fork a sequence. Not thread-safe.
class TokenHistory {
 public:
  struct Entry {
    int32_t id;
    uint32_t prompt;     // times in the prompt; saturates
    uint32_t generated;  // times generated; saturates
  };

  // id >= 0.
  void add_prompt(int32_t id, uint32_t times = 1);
  void add_prompt(std::span<const int32_t> ids);
  void add_generated(int32_t id, uint32_t times = 1);

  // A session's next request: what was generated is part of the context now, as it would be had the
  // client sent it all as one prompt.
  void begin_request();

  // Zero counts for a token never seen.
  Entry count(int32_t id) const;
  // Every token seen, in order of first occurrence.
  std::span<const Entry> entries() const { return entries_; }

 private:
  Entry& entry(int32_t id);
  // Where `id` is, or the empty place it would take. The table must not be empty.
  uint32_t place(int32_t id) const;
  void grow();

  std::vector<Entry> entries_;
  std::vector<int32_t> table_;  // (2^k >= 2 * entries): index into entries_, or -1
};

}  // namespace recurve

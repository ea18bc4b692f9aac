#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace recurve {

// The last tokens that a state has absorbed, each with the form in which it was: absorbed again in
// these forms, from an earlier state of the text, they give the same state, to the bit. A ring of
// at most `most` tokens, which grows as they come. Of all tokens before, a digest that tells two
// texts apart. Copies share the tokens until one of them gets another one. Not thread-safe.
class TokenLog {
 public:
  enum class Form : uint8_t {
    kStep,          // sampled, and absorbed by a step of one row
    kPrompt,        // of a prompt, which is cut on a grid from its first token on
    kFirst,         // the first token of a prompt
    kFirstPending,  // the same, and it was sampled before
  };
  struct Entry {
    int32_t id;
    Form form;
    bool was_sampled() const { return form == Form::kStep || form == Form::kFirstPending; }
    bool begins_prompt() const { return form == Form::kFirst || form == Form::kFirstPending; }
  };

  TokenLog() = default;
  // Of a state that has absorbed nothing. most 0: no token is stored.
  explicit TokenLog(int64_t most) : most_(most) {}
  // Of the last tokens of a text, as words() has them, from a position on. first_digest: as below.
  static TokenLog continued(int64_t most, int64_t begin, uint64_t first_digest,
                            std::span<const uint32_t> words);
  // Of a state whose tokens are not known; it is at the beginning of no other one.
  static TokenLog unknown(int64_t most, int64_t position);
  // Of a state whose last tokens, of which there are at most `most`, are stored elsewhere: until
  // load() has them, they can be neither read nor added to. first_digest, digest: as below.
  static TokenLog stored(int64_t most, int64_t begin, int64_t end, uint64_t first_digest,
                         uint64_t digest);
  bool is_loaded() const { return entries_ != nullptr || begin_ == end_; }
  // words: of all its tokens. False, and nothing changes: they are others.
  bool load(std::span<const uint32_t> words);

  // ids in [0, 2^30).
  void add(int32_t id, Form form);

  int64_t most() const { return most_; }
  int64_t begin() const { return begin_; }  // the position of the first token that is stored
  int64_t end() const { return end_; }      // tokens absorbed
  Entry at(int64_t position) const;         // in [begin, end)
  // The entries in [from, to), as numbers: 4 * id + form.
  std::vector<uint32_t> words(int64_t from, int64_t to) const;
  // The first part, up to a position in [begin, end].
  TokenLog until(int64_t position) const;
  // Of all tokens up to the end. Two logs of one digest are of one text, in the same forms.
  uint64_t digest() const { return digest_; }
  // The same up to begin(), and from there on, or from any position of a digest, up to another one.
  uint64_t first_digest() const { return first_digest_; }
  uint64_t next_digest(uint64_t digest, int64_t from, int64_t to) const;
  bool has_all() const { return begin_ == 0 && first_digest_ == 0; }

  // What it may take, all told.
  static size_t most_bytes(int64_t most) { return static_cast<size_t>(most) * sizeof(uint32_t); }

 private:
  size_t index_of(int64_t position) const {
    return static_cast<size_t>((position - origin_) % most_);
  }
  int64_t most_ = 0;
  int64_t origin_ = 0;  // the position of the first token there was
  int64_t begin_ = 0, end_ = 0;
  uint64_t first_digest_ = 0, digest_ = 0;  // of the tokens before begin_, and before end_
  using Entries = std::vector<uint32_t>;    // as words() has them
  void own_entries();
  uint32_t entry(int64_t position) const { return (*entries_)[index_of(position)]; }

  std::shared_ptr<Entries> entries_;  // null: none
};

}  // namespace recurve

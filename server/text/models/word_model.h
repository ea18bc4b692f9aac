#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/work_limits.h"

namespace recurve {

// Finds the ids of words in one thread. It reuses its memory from word to word.
class WordEncoder {
 public:
  virtual ~WordEncoder() = default;
  // Appends the ids of one word (valid UTF-8; any bytes for a byte-level model), in memory that
  // does not grow with the word. Throws what WorkLimits::check() throws.
  virtual void encode(std::string_view word, const WorkLimits& limits,
                      std::vector<int32_t>& ids) = 0;
};

// The "model" of a tokenizer.json, which finds the ids of a word. Constant after loading.
class WordModel {
 public:
  virtual ~WordModel() = default;
  // The model must outlive the encoder.
  virtual std::unique_ptr<WordEncoder> encoder() const = 0;
  // False if every symbol of a word becomes an id by itself, so that a word can be split anywhere.
  virtual bool joins_symbols() const { return true; }
  // True if a word can be split between these two characters without a change of its ids.
  virtual bool is_boundary(char32_t /*before*/, char32_t /*here*/) const { return false; }
  // E.g. "byte-level BPE" and "50009 merges".
  virtual std::string kind() const = 0;
  virtual std::string details() const = 0;
};

}  // namespace recurve

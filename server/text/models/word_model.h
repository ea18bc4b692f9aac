#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/work_limits.h"

namespace recurve {

// What turns words into ids in one thread's work on a text. It reuses its memory from word to word.
class WordEncoder {
 public:
  virtual ~WordEncoder() = default;
  // Appends the ids of one word (valid UTF-8; any bytes for a model of bytes), in memory that does
  // not grow with it. Throws what the limits throw.
  virtual void encode(std::string_view word, const WorkLimits& limits,
                      std::vector<int32_t>& ids) = 0;
};

// The "model" of a tokenizer.json: how the ids of a word are found. Constant after loading.
class WordModel {
 public:
  virtual ~WordModel() = default;
  // The model outlives it.
  virtual std::unique_ptr<WordEncoder> encoder() const = 0;
  // False if a word's symbols know nothing of each other, so that it can be cut anywhere.
  virtual bool joins_symbols() const { return true; }
  // True if between these two characters of a word it can always be cut, and has the same ids.
  virtual bool is_border(char32_t /*before*/, char32_t /*here*/) const { return false; }
  // E.g. "byte-level BPE" and "50009 merges".
  virtual std::string kind() const = 0;
  virtual std::string details() const = 0;
};

}  // namespace recurve

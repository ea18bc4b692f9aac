#pragma once

#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/text/normalizers/charsmap.h"
#include "server/text/normalizers/normalizer.h"
#include "server/text/pre_tokenizers/regex.h"
#include "server/text/tokenizers/tokenizer.h"
#include "server/text/work_limits.h"

namespace recurve {

// The normalizer of a tokenizer: a chain of the normalizers of Hugging Face's `tokenizers`.
// Constant after construction.
class NormalizerChain {
 public:
  // A map of single characters.
  enum class Map {
    kLowercase,
    kStripMarks,            // StripAccents: drops category M
    kStripNonspacingMarks,  // BertNormalizer: drops category Mn
    kCleanText,             // BertNormalizer: drops control characters, white space to space
    kSpaceChinese,          // BertNormalizer: adds spaces around Chinese characters
    kNmt,                   // Nmt: drops control characters, other white space to space
  };
  struct Replace {
    Regex pattern;
    std::string content;
  };
  struct Prepend {  // before a text that is not empty
    std::string content;
  };
  struct Strip {  // white space at the ends
    bool left;
    bool right;
  };
  using Step = std::variant<NormalForm, Map, CharsMap, Replace, Prepend, Strip>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  const std::vector<Step>& steps() const { return steps_; }
  // Whether the chain prepends something to a text.
  bool marks_start() const;
  // Normalizes a whole text.
  std::string normalize(std::string_view utf8) const;

 private:
  std::vector<Step> steps_;
};

// The normalization of one text that arrives in parts.
class Normalization {
 public:
  // `chain` and what the limits point to must outlive it. Nothing is prepended to text that is
  // kContinued.
  Normalization(const NormalizerChain& chain, TextPosition position, const WorkLimits& limits);
  ~Normalization();
  Normalization(Normalization&&) noexcept;
  Normalization& operator=(Normalization&&) noexcept;

  // Takes the next part, in whole characters; `last`: it ends the text. Returns the output that no
  // later part can change. Throws WorkUnwanted.
  std::string push(std::string_view utf8, bool last);
  // Returns the rest of the output, as if no later part could change it.
  std::string cut();
  // Bytes of input whose output is not certain yet.
  size_t held() const;

  // One step of the chain.
  class Stage;

 private:
  enum class End { kOpen, kCut, kText };
  std::string run(std::string_view utf8, End end);

  std::vector<std::unique_ptr<Stage>> stages_;
};

// Reads the "normalizer" of a tokenizer.json; null: none.
NormalizerChain read_normalizer(const nlohmann::json* normalizer);

}  // namespace recurve

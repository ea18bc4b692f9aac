#pragma once

#include <cstddef>
#include <memory>
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

// What a tokenizer does to a text before it is cut: the normalizers of Hugging Face's `tokenizers`,
// one after the other. Constant after construction.
class NormalizerChain {
 public:
  // What is done to each character by itself.
  enum class Map {
    kLowercase,
    kStripMarks,            // drops category M (StripAccents)
    kStripNonspacingMarks,  // drops category Mn (of BertNormalizer)
    kCleanText,             // drops control characters, makes white space a space (likewise)
    kSpaceChinese,          // puts spaces around Chinese characters (likewise)
    kNmt,                   // drops control characters, makes other white space a space (Nmt)
  };
  struct Replace {
    Regex pattern;
    std::string content;
  };
  struct Prepend {  // in front of a text that is not empty
    std::string content;
  };
  struct Strip {  // white space at the ends of a text
    bool left;
    bool right;
  };
  using Step = std::variant<NormalForm, Map, CharsMap, Replace, Prepend, Strip>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  const std::vector<Step>& steps() const { return steps_; }
  // Something is put in front of a text.
  bool marks_start() const;
  // A whole text.
  std::string normalize(std::string_view utf8) const;

 private:
  std::vector<Step> steps_;
};

// One text on its way through a chain, which comes in parts.
class Normalization {
 public:
  // `chain` and what the limits point to outlive it. Nothing is put in front of text that is
  // kContinued.
  Normalization(const NormalizerChain& chain, TextPosition position, const WorkLimits& limits);
  ~Normalization();
  Normalization(Normalization&&) noexcept;
  Normalization& operator=(Normalization&&) noexcept;

  // The next part, in whole characters; `last`: the text ends with it. What nothing that follows
  // can change any more. Throws WorkUnwanted.
  std::string push(std::string_view utf8, bool last);
  // All that is there, as if what follows could not change it.
  std::string cut();
  // Bytes that wait for what follows them.
  size_t held() const;

  // One step on one text.
  class Stage;

 private:
  enum class End { kOpen, kCut, kText };
  std::string run(std::string_view utf8, End end);

  std::vector<std::unique_ptr<Stage>> stages_;
};

}  // namespace recurve

#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/text/models/word_model.h"
#include "server/text/pre_tokenizers/regex.h"
#include "server/text/tokenizers/tokenizer.h"
#include "server/text/work_limits.h"

namespace recurve {

// What becomes of the matches of a pattern that cuts a text.
enum class SplitBehavior {
  kIsolated,            // each match is a piece
  kRemoved,             // matches vanish
  kMergedWithPrevious,  // each match ends the piece before it
  kMergedWithNext,      // each match begins the piece after it
  kContiguous,          // matches that touch are one piece
};

// A text cut into pieces: [begin, end) in bytes of `text`, in order, none empty.
struct Pieces {
  struct Range {
    size_t begin;
    size_t end;
  };
  std::string text;
  std::vector<Range> ranges;

  std::string_view piece(Range r) const {
    return std::string_view(text).substr(r.begin, r.end - r.begin);
  }
};

// Cuts a text into the words that a model then works on: a chain of the pre-tokenizers of Hugging
// Face's `tokenizers` (0.23), each run on every piece that the one before it left. Constant after
// construction.
class PreTokenizer {
 public:
  struct Split {
    Regex pattern;
    SplitBehavior behavior;
    bool invert;
  };
  // From here on the text is in the byte-level alphabet (byte_level.h): steps after it see that.
  struct ByteLevel {
    bool add_prefix_space;
    bool use_regex;  // cut with GPT-2's pattern first
  };
  // Spaces become `mark`; so that each word has one, one may be put in front.
  struct Metaspace {
    enum class Prepend { kNever, kFirst, kAlways };  // kFirst: of the text only, not behind tokens
    std::string mark;
    Prepend prepend;
    bool split;  // a mark begins a word
  };
  using Step = std::variant<Split, ByteLevel, Metaspace>;

  void add(Step step);
  const std::vector<Step>& steps() const { return steps_; }
  // A space is put in front of a text.
  bool marks_start() const;
  bool splits() const { return first_split() < actions_.size(); }

 private:
  friend class WordCutter;
  struct Prefix {  // `mark` before a piece that does not begin with it
    std::string mark;
    bool first_only;
  };
  struct MarkSpaces {  // each space
    std::string mark;
  };
  struct ByteAlphabet {};  // the piece in the byte-level alphabet
  // What a step does, in parts that do one thing each.
  using Action = std::variant<Split, Prefix, MarkSpaces, ByteAlphabet>;

  // The index of the first Split from action `from` on; the number of actions if there is none.
  size_t next_split(size_t from) const;
  size_t first_split() const { return next_split(0); }
  // The words are in the byte-level alphabet, which the model does not know: it has bytes.
  bool leaves_alphabet() const;

  std::vector<Step> steps_;
  std::vector<Action> actions_;
};

// A piece that may go on with the next span.
struct OpenPiece {
  bool begun = false;
  size_t begin = 0;
  size_t end = 0;
  bool is_match = false;  // of its last span
};

// Cuts one stretch of text without added tokens, which comes in parts. What the first Split of the
// chain has cut off can be taken by itself: the steps behind it work on every piece alone, and a
// piece that is long goes through them in parts as well.
class WordCutter {
 public:
  using Take = std::function<void(std::string_view word)>;

  // `chain`, `model` and what the limits point to outlive it. Text that is kContinued gets nothing
  // put in front; `first`: the stretch begins the text. The words are in bytes where the chain
  // writes the byte-level alphabet.
  WordCutter(const PreTokenizer& chain, const WordModel& model, const WorkLimits& limits,
             TextPosition position, bool first)
      : WordCutter(chain, 0, model, limits, position, first) {}

  // The next part, in whole characters of UTF-8; `last`: the stretch ends with it. Gives `take` the
  // words that have become certain. Nothing may come after the last part. Throws WorkUnwanted.
  void push(std::string_view utf8, bool last, const Take& take);
  size_t held() const { return text_.size(); }

 private:
  // The chain from action `from` on.
  WordCutter(const PreTokenizer& chain, size_t from, const WordModel& model,
             const WorkLimits& limits, TextPosition position, bool first);

  Pieces take_certain(bool last);
  void push_long(std::string_view piece, const Take& take) const;
  void finish(Pieces pieces, const Take& take) const;
  void append(std::string_view utf8);
  std::vector<Pieces::Range> cut(bool last);
  std::vector<Pieces::Range> cut_unsplit(bool last);
  size_t last_border() const;
  size_t kept_from() const;
  void run(const PreTokenizer::Action& action, Pieces& pieces) const;
  void split(const PreTokenizer::Split& step, Pieces& pieces) const;

  const PreTokenizer* chain_;
  const WordModel* model_;
  WorkLimits limits_;
  size_t from_;         // index of the first action
  size_t first_split_;  // of the first Split; the number of actions if there is none
  bool prefix_due_;
  bool first_;
  std::string text_;     // as the first split sees it, from the first byte on that is still needed
  size_t searched_ = 0;  // of the text: bytes that have been searched for places to cut
  Regex::Search search_;
  OpenPiece open_;
};

}  // namespace recurve

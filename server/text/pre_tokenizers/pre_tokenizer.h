#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/text/models/word_model.h"
#include "server/text/pre_tokenizers/regex.h"
#include "server/text/tokenizers/tokenizer.h"
#include "server/text/work_limits.h"

namespace recurve {

// What a Split does with the matches of its pattern.
enum class SplitBehavior {
  kIsolated,            // each match is a piece
  kRemoved,             // matches are removed
  kMergedWithPrevious,  // each match is added to the piece before it
  kMergedWithNext,      // each match is added to the piece after it
  kContiguous,          // adjacent matches are one piece
};

// A text and its pieces, in order, none empty.
struct Pieces {
  std::string text;
  std::vector<ByteRange> ranges;

  std::string_view piece(ByteRange r) const {
    return std::string_view(text).substr(r.begin, r.end - r.begin);
  }
};

// Splits a text into words for a model: a chain of the pre-tokenizers of Hugging Face's
// `tokenizers` (0.23), each of which processes every piece of the one before it. Constant after
// construction.
class PreTokenizer {
 public:
  struct Split {
    Regex pattern;
    SplitBehavior behavior;
    bool invert;
  };
  // Translates the text to the byte-level alphabet (byte_level.h) for the steps after it.
  struct ByteLevel {
    bool add_prefix_space;
    bool use_regex;  // first splits with GPT-2's pattern
  };
  // Replaces spaces by `mark`, and may prepend one so that the first word has one.
  struct Metaspace {
    enum class Prepend {
      kNever,
      kFirst,
      kAlways
    };  // kFirst: to the text only, not after added tokens
    std::string mark;
    Prepend prepend;
    bool split;  // before each mark
  };
  using Step = std::variant<Split, ByteLevel, Metaspace>;

  void add(Step step);
  const std::vector<Step>& steps() const { return steps_; }
  // Whether a space is prepended to a text.
  bool marks_start() const;
  bool splits() const { return first_split() < actions_.size(); }

 private:
  friend class WordSplitter;
  struct Prefix {  // prepends `mark` to a piece that does not begin with it
    std::string mark;
    bool first_only;
  };
  struct MarkSpaces {  // replaces each space
    std::string mark;
  };
  struct ByteAlphabet {};  // translates the piece to the byte-level alphabet
  // A step is executed as one or more actions.
  using Action = std::variant<Split, Prefix, MarkSpaces, ByteAlphabet>;

  // The index of the first Split from action `from` on; the number of actions if there is none.
  size_t next_split(size_t from) const;
  size_t first_split() const { return next_split(0); }
  // Whether words are translated back from the byte-level alphabet, since the model works on bytes.
  bool decodes_words() const;

  std::vector<Step> steps_;
  std::vector<Action> actions_;
};

// A piece to which the next span may be added.
struct OpenPiece {
  bool begun = false;
  size_t begin = 0;
  size_t end = 0;
  bool is_match = false;  // of its last span
};

// Splits text between added tokens, which arrives in parts. Each piece of the first Split of the
// chain goes through the later steps separately, a long one again in parts.
class WordSplitter {
 public:
  using Sink = std::function<void(std::string_view word)>;

  // `chain`, `model` and what the limits point to must outlive it. Nothing is prepended to text
  // that is kContinued. `first`: it is the beginning of the whole text. Words are bytes if the
  // chain translates to the byte-level alphabet.
  WordSplitter(const PreTokenizer& chain, const WordModel& model, const WorkLimits& limits,
               TextPosition position, bool first)
      : WordSplitter(chain, 0, model, limits, position, first) {}

  // Takes the next part, in whole characters of UTF-8; `last`: it is the last. Calls `sink` for
  // each word that no later part can change. Throws WorkUnwanted.
  void push(std::string_view utf8, bool last, const Sink& sink);
  size_t held() const { return text_.size(); }

 private:
  // Executes the chain from action `from` on.
  WordSplitter(const PreTokenizer& chain, size_t from, const WordModel& model,
               const WorkLimits& limits, TextPosition position, bool first);

  Pieces take_pieces(bool last);
  void push_long(std::string_view piece, const Sink& sink) const;
  void finish(Pieces pieces, const Sink& sink) const;
  void append(std::string_view utf8);
  std::vector<ByteRange> next_pieces(bool last);
  std::vector<ByteRange> next_unsplit(bool last);
  size_t last_boundary() const;
  size_t first_needed() const;
  void run(const PreTokenizer::Action& action, Pieces& pieces) const;
  void split(const PreTokenizer::Split& step, Pieces& pieces) const;

  const PreTokenizer* chain_;
  const WordModel* model_;
  WorkLimits limits_;
  size_t from_;         // index of the first action
  size_t first_split_;  // of the first Split; the number of actions if there is none
  bool prefix_due_;
  bool first_;
  std::string text_;     // input of the first split, from the first byte that is needed
  size_t searched_ = 0;  // bytes of text_ that have been searched for places to split
  Regex::Search search_;
  OpenPiece open_;
};

// The "pre_tokenizer" of a tokenizer.json; null: nothing is cut.
PreTokenizer read_pre_tokenizer(const nlohmann::json* pre_tokenizer);

}  // namespace recurve

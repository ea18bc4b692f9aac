#include "server/text/world/world_tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <stdexcept>

#include "server/text/models/trie.h"
#include "server/text/tokenizers/added_tokens.h"
#include "server/text/world/world_vocabulary.h"

namespace recurve {
namespace {

// What the packages call id 0.
constexpr std::string_view kEndNames[] = {"<|endoftext|>", "<|rwkv_tokenizer_end_of_text|>"};
constexpr int32_t kEnd = 0;

class WorldTokenizer final : public Tokenizer {
 public:
  explicit WorldTokenizer(std::vector<std::string> entries) : entries_(std::move(entries)) {
    for (int32_t id = 1; id < size(); ++id) {
      const std::string& bytes = entries_[static_cast<size_t>(id)];
      if (!bytes.empty()) trie_.add(bytes, id);
    }
    for (const std::string_view name : kEndNames) {
      AddedToken end;
      end.id = kEnd;
      end.special = true;
      controls_.add(end, name);
    }
  }

  std::unique_ptr<TextEncoder> encoder(SpecialTokens special, TextPosition,
                                       const WorkLimits& limits) const override {
    return std::make_unique<Encoder>(*this, special, limits);
  }

  int32_t size() const override { return static_cast<int32_t>(entries_.size()); }
  std::string_view token_bytes(int32_t id) const override {
    return id >= 0 && id < size() ? std::string_view(entries_[static_cast<size_t>(id)])
                                  : std::string_view();
  }
  bool is_special(int32_t id) const override { return id == kEnd; }
  std::optional<int32_t> id_of(std::string_view name) const override {
    if (std::ranges::find(kEndNames, name) != std::end(kEndNames)) return kEnd;
    int32_t node = Trie::kRoot;
    for (const char byte : name) {
      node = trie_.next(node, byte);
      if (node == Trie::kNone) return std::nullopt;
    }
    const int32_t id = trie_.number(node);
    return id == Trie::kNone ? std::nullopt : std::optional(id);
  }
  std::optional<int32_t> bos_id() const override { return std::nullopt; }
  std::optional<int32_t> eos_id() const override { return kEnd; }
  std::string description() const override {
    return fmt::format("RWKV World, {} ids", entries_.size());
  }

 private:
  class Encoder final : public TextEncoder {
   public:
    Encoder(const WorldTokenizer& tokenizer, SpecialTokens special, const WorkLimits& limits)
        : tokenizer_(tokenizer), limits_(limits) {
      set_special(special, nullptr);
    }

    void push(std::string_view utf8, bool last, std::vector<int32_t>* ids) override {
      limits_.check();
      if (!controls_) return add_text(utf8, last, ids);
      for (const AddedSpan& span : controls_->push(utf8, trusted_, last)) {
        if (span.id < 0) {
          add_text(span.text, false, ids);
        } else {
          add_text({}, true, ids);
          ids->push_back(span.id);
        }
      }
      if (last) add_text({}, true, ids);
    }
    // Nothing is looked for until something can be found.
    void set_special(SpecialTokens special, std::vector<int32_t>*) override {
      trusted_ = special == SpecialTokens::kParse;
      if (trusted_ && !controls_) controls_.emplace(tokenizer_.controls_);
    }
    size_t held() const override { return text_.size() + (controls_ ? controls_->held() : 0); }

   private:
    void add_text(std::string_view part, bool last, std::vector<int32_t>* ids) {
      text_.append(part);
      size_t at = 0;
      for (size_t tokens = 1; at < text_.size(); ++tokens) {
        const Match match = tokenizer_.longest(std::string_view(text_).substr(at));
        if (match.open && !last) break;
        ids->push_back(match.id);
        at += match.length;
        if (tokens % kLookedAt == 0) limits_.check(ids->size());
      }
      text_.erase(0, at);
      limits_.check(ids->size());
    }

    static constexpr size_t kLookedAt = 4096;  // tokens between two looks at the limits

    const WorldTokenizer& tokenizer_;
    const WorkLimits limits_;
    std::optional<AddedTokenScanner> controls_;
    bool trusted_ = false;
    std::string text_;
  };

  struct Match {
    int32_t id;
    size_t length;
    bool open;  // more text might make it longer
  };

  // Of a text of a byte or more: each single byte is an entry.
  Match longest(std::string_view text) const {
    Match match{Trie::kNone, 0, false};
    int32_t node = Trie::kRoot;
    for (size_t at = 0; at < text.size(); ++at) {
      node = trie_.next(node, text[at]);
      if (node == Trie::kNone) return match;
      if (trie_.number(node) != Trie::kNone) match = {trie_.number(node), at + 1, false};
    }
    match.open = true;
    return match;
  }

  const std::vector<std::string> entries_;  // [id]
  Trie trie_;                               // of entries, by id
  AddedTokenFinder controls_;
};

}  // namespace

std::unique_ptr<Tokenizer> parse_world_vocabulary(std::string_view vocabulary,
                                                  const std::string& file) {
  try {
    return std::make_unique<WorldTokenizer>(read_world_vocabulary(vocabulary));
  } catch (const std::exception& e) {
    throw std::runtime_error(fmt::format("{}: {}", file, e.what()));
  }
}

}  // namespace recurve

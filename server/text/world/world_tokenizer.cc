#include "server/text/world/world_tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <stdexcept>

#include "server/text/models/trie.h"
#include "server/text/tokenizers/added_tokens.h"

namespace recurve {
namespace {

// The names of id 0 in RWKV's packages.
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
    const Trie::Match entry = trie_.longest(name);
    return entry.bytes == name.size() && !name.empty() ? std::optional(entry.number) : std::nullopt;
  }
  std::optional<int32_t> bos_id() const override { return std::nullopt; }
  std::optional<int32_t> eos_id() const override { return kEnd; }
  std::string description() const override {
    return fmt::format("RWKV World, {} ids", entries_.size());
  }

 private:
  class Encoder final : public ControlTokenEncoder {
   public:
    Encoder(const WorldTokenizer& tokenizer, SpecialTokens special, const WorkLimits& limits)
        : ControlTokenEncoder(tokenizer.controls_, special, limits), tokenizer_(tokenizer) {}

    size_t held() const override { return text_.size() + ControlTokenEncoder::held(); }

   private:
    void add_text(std::string_view part, bool last, std::vector<int32_t>* ids) override {
      text_.append(part);
      size_t at = 0;
      for (size_t tokens = 1; at < text_.size(); ++tokens) {
        const Trie::Match match = tokenizer_.trie_.longest(std::string_view(text_).substr(at));
        if (match.open && !last) break;
        ids->push_back(match.number);  // each single byte is an entry
        at += match.bytes;
        if (tokens % kCheckEvery == 0) limits_.check(ids->size());
      }
      text_.erase(0, at);
      limits_.check(ids->size());
    }

    static constexpr size_t kCheckEvery = 4096;  // tokens between two checks of the limits

    const WorldTokenizer& tokenizer_;
    std::string text_;
  };

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

#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// Ids 0 to 255 are the bytes; then BOS, EOS and a few words, so that characters fall into several
// tokens and tokens hold several characters. Encoding gives bytes only, and holds what may become
// "<s>" or "</s>".
class FakeTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kBos = 256, kEos = 257, kWords = 258;
  static constexpr std::array<std::string_view, 4> kWordTexts = {"hello", " world", "xENDy", "é!"};
  static constexpr int32_t kSize = kWords + static_cast<int32_t>(kWordTexts.size());

  // Called, where they are set, before a text is encoded and before a token is written: to throw.
  static inline std::atomic<void (*)()> before_encode{nullptr}, before_token{nullptr};
  // Called, where it is set, with what an encoder is to read: to wait.
  static inline std::atomic<void (*)(std::string_view)> before_push{nullptr};

  // `marks_start`: the start of a text gets a space, which `leading_space` may remove.
  explicit FakeTokenizer(bool marks_start = false, LeadingSpace leading_space = LeadingSpace::kKeep)
      : marks_start_(marks_start), leading_space_(leading_space) {}

  std::unique_ptr<TextEncoder> encoder(SpecialTokens special, TextPosition position,
                                       const WorkLimits& limits) const override {
    call(before_encode);
    const bool mark = marks_start_ && position == TextPosition::kStart;
    return std::make_unique<Encoder>(special, mark ? " " : "", limits);
  }
  bool marks_start() const override { return marks_start_; }
  int32_t size() const override { return kSize; }
  std::string_view token_bytes(int32_t id) const override {
    call(before_token);
    if (id < 0 || id >= kSize || is_special(id)) return {};
    if (id >= kWords) return kWordTexts[static_cast<size_t>(id - kWords)];
    return {bytes_.data() + id, 1};
  }
  LeadingSpace leading_space() const override { return leading_space_; }
  bool has_space_mark(int32_t id) const override { return token_bytes(id).starts_with(' '); }
  bool is_special(int32_t id) const override { return id == kBos || id == kEos; }
  std::optional<int32_t> id_of(std::string_view name) const override {
    if (name == "<s>") return kBos;
    if (name == "</s>") return kEos;
    return {};
  }
  std::optional<int32_t> bos_id() const override { return kBos; }
  std::optional<int32_t> eos_id() const override { return kEos; }
  std::string description() const override { return "bytes"; }

 private:
  static void call(void (*function)()) {
    if (function != nullptr) function();
  }

  class Encoder final : public TextEncoder {
   public:
    Encoder(SpecialTokens special, std::string before, const WorkLimits& limits)
        : special_(special), held_(std::move(before)), limits_(limits) {}
    void push(std::string_view utf8, bool last, std::vector<int32_t>* ids) override {
      if (auto* const function = before_push.load()) function(utf8);
      held_.append(utf8);
      const bool parse = special_ == SpecialTokens::kParse;
      std::string_view rest = held_;
      while (!rest.empty()) {
        const bool bos = parse && rest.starts_with("<s>"), eos = parse && rest.starts_with("</s>");
        const bool open =
            std::string_view("<s>").starts_with(rest) || std::string_view("</s>").starts_with(rest);
        if (parse && !bos && !eos && !last && open) break;
        ids->push_back(bos ? kBos : eos ? kEos : static_cast<unsigned char>(rest.front()));
        rest.remove_prefix(bos ? 3 : eos ? 4 : 1);
        limits_.check(ids->size());
      }
      held_.erase(0, held_.size() - rest.size());
    }
    void set_special(SpecialTokens special, std::vector<int32_t>* ids) override {
      push({}, true, ids);
      special_ = special;
    }
    size_t held() const override { return held_.size(); }

   private:
    SpecialTokens special_;
    std::string held_;
    const WorkLimits limits_;
  };

  const bool marks_start_;
  const LeadingSpace leading_space_;
  const std::string bytes_ = [] {
    std::string all;
    for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
    return all;
  }();
};

}  // namespace recurve

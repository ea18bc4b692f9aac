#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/tokenizer.h"

namespace recurve {

// Ids 0 to 255 are the bytes; then BOS, EOS and a few words, so that characters fall into several
// tokens and tokens hold several characters. encode() gives bytes only.
class FakeTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kBos = 256, kEos = 257, kWords = 258;
  static constexpr std::array<std::string_view, 4> kWordTexts = {"hello", " world", "xENDy", "é!"};
  static constexpr int32_t kSize = kWords + static_cast<int32_t>(kWordTexts.size());

  std::vector<int32_t> encode(std::string_view utf8, SpecialTokens special) const override {
    std::vector<int32_t> ids;
    while (!utf8.empty()) {
      if (special == SpecialTokens::kParse && utf8.starts_with("<s>")) {
        ids.push_back(kBos);
        utf8.remove_prefix(3);
      } else {
        ids.push_back(static_cast<unsigned char>(utf8.front()));
        utf8.remove_prefix(1);
      }
    }
    return ids;
  }
  int32_t size() const override { return kSize; }
  std::string_view token_bytes(int32_t id) const override {
    if (id < 0 || id >= kSize || is_special(id)) return {};
    if (id >= kWords) return kWordTexts[static_cast<size_t>(id - kWords)];
    return {bytes_.data() + id, 1};
  }
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
  const std::string bytes_ = [] {
    std::string all;
    for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
    return all;
  }();
};

}  // namespace recurve

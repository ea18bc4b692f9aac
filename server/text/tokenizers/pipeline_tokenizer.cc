#include "server/text/tokenizers/pipeline_tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace recurve {

PipelineTokenizer::PipelineTokenizer(Parts parts) : parts_(std::move(parts)) {
  const auto size = static_cast<size_t>(parts_.size);
  bytes_.resize(size);
  special_.resize(size);
  if (leading_space() == LeadingSpace::kFirstDiffers) first_bytes_.resize(size);
  // Control tokens first: of two tokens with the same text, the control token is found.
  std::stable_sort(parts_.added.begin(), parts_.added.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.special > b.special; });
  for (const AddedToken& token : parts_.added) {
    special_[static_cast<size_t>(token.id)] = token.special;
    if (token.normalized) {
      in_normal_text_.add(token, parts_.normalizer.normalize(token.content));
    } else {
      in_raw_text_.add(token, token.content);
    }
  }
  set_texts();
}

void PipelineTokenizer::set_texts() {
  for (const auto& [name, id] : parts_.vocabulary) set_text(id, name);
  for (const AddedToken& token : parts_.added) {
    const auto id = static_cast<size_t>(token.id);
    set_text(token.id, token.content);
    if (parts_.decoder.kind == TokenDecoder::Kind::kByteLevel) bytes_[id] = token.content;
    if (!token.special) continue;
    bytes_[id].clear();
    if (!first_bytes_.empty()) first_bytes_[id].clear();
  }
}

void PipelineTokenizer::set_text(int32_t id, std::string_view name) {
  const auto i = static_cast<size_t>(id);
  bytes_[i] = parts_.decoder.bytes_of(name, /*first=*/false);
  if (!first_bytes_.empty()) first_bytes_[i] = parts_.decoder.bytes_of(name, /*first=*/true);
}

// The stages of encoding. Each passes on the output that later text cannot change.
class PipelineEncoder final : public TextEncoder {
 public:
  PipelineEncoder(const PipelineTokenizer& tokenizer, SpecialTokens special, TextPosition position,
                  const WorkLimits& limits)
      : tokenizer_(tokenizer),
        limits_(limits),
        trusted_(special == SpecialTokens::kParse),
        in_raw_(tokenizer.in_raw_text_),
        normalization_(tokenizer.parts_.normalizer, position, limits),
        in_normal_(tokenizer.in_normal_text_),
        words_(splitter(position, /*first=*/position == TextPosition::kStart)),
        model_(tokenizer.parts_.model->encoder()) {}

  // Collects small parts, and the more the longer the text that the stages hold back: they may read
  // it again for each part, which so costs at most a few times its length.
  void push(std::string_view utf8, bool last, std::vector<int32_t>* ids) override {
    constexpr size_t kLeastBytes = 4096;
    limits_.check();
    unread_.append(utf8);
    if (!last && unread_.size() < std::max(kLeastBytes, held_in_stages() / 2)) return;
    read(last, ids);
  }

  void set_special(SpecialTokens special, std::vector<int32_t>* ids) override {
    read(false, ids);
    trusted_ = special == SpecialTokens::kParse;
  }

  size_t held() const override { return unread_.size() + held_in_stages() + words_.held(); }

 private:
  size_t held_in_stages() const {
    return in_raw_.held() + normalization_.held() + in_normal_.held();
  }

  void read(bool last, std::vector<int32_t>* ids) {
    for (const AddedSpan& span : in_raw_.push(std::exchange(unread_, {}), trusted_, last)) {
      if (span.id < 0) {
        add_text(span.text, span.trusted, false, ids);
      } else {
        add_text({}, normalization_trusted_, true, ids);
        ids->push_back(span.id);
        limits_.check(ids->size());
      }
    }
    if (last) add_text({}, normalization_trusted_, true, ids);
  }

  // Adds raw text between two added tokens; `last`: it ends here.
  void add_text(std::string_view text, bool trusted, bool last, std::vector<int32_t>* ids) {
    if (tokenizer_.parts_.normalizer.steps().empty()) {
      return add_normal_text(text, trusted, last, ids);
    }
    if (trusted != normalization_trusted_) {
      add_normal_text(normalization_.cut(), normalization_trusted_, false, ids);
      normalization_trusted_ = trusted;
    }
    add_normal_text(normalization_.push(text, last), trusted, last, ids);
    if (!last) return;
    normalization_ = Normalization(tokenizer_.parts_.normalizer, TextPosition::kStart, limits_);
  }

  void add_normal_text(std::string_view text, bool trusted, bool last, std::vector<int32_t>* ids) {
    for (const AddedSpan& span : in_normal_.push(text, trusted, last)) {
      if (span.id < 0) {
        add_words(span.text, false, ids);
      } else {
        add_words({}, true, ids);
        ids->push_back(span.id);
        limits_.check(ids->size());
      }
    }
    if (!last) return;
    add_words({}, true, ids);
    in_normal_ = AddedTokenScanner(tokenizer_.in_normal_text_);
  }

  void add_words(std::string_view text, bool last, std::vector<int32_t>* ids) {
    words_.push(text, last, [&](std::string_view word) { model_->encode(word, limits_, *ids); });
    if (last) words_ = splitter(TextPosition::kStart, /*first=*/false);
  }

  WordSplitter splitter(TextPosition position, bool first) const {
    return {tokenizer_.parts_.pre_tokenizer, *tokenizer_.parts_.model, limits_, position, first};
  }

  const PipelineTokenizer& tokenizer_;
  const WorkLimits limits_;
  std::string unread_;
  bool trusted_;  // unread_
  AddedTokenScanner in_raw_;
  Normalization normalization_;
  bool normalization_trusted_ = false;  // the text held by normalization_
  AddedTokenScanner in_normal_;
  WordSplitter words_;
  std::unique_ptr<WordEncoder> model_;
};

std::unique_ptr<TextEncoder> PipelineTokenizer::encoder(SpecialTokens special,
                                                        TextPosition position,
                                                        const WorkLimits& limits) const {
  return std::make_unique<PipelineEncoder>(*this, special, position, limits);
}

std::string_view PipelineTokenizer::token_bytes(int32_t id) const {
  return valid(id) ? std::string_view(bytes_[static_cast<size_t>(id)]) : std::string_view();
}

std::string_view PipelineTokenizer::first_token_bytes(int32_t id) const {
  if (first_bytes_.empty() || !valid(id)) return token_bytes(id);
  return first_bytes_[static_cast<size_t>(id)];
}

bool PipelineTokenizer::is_special(int32_t id) const {
  return valid(id) && special_[static_cast<size_t>(id)];
}

std::optional<int32_t> PipelineTokenizer::Parts::id_of(std::string_view name) const {
  const auto token = std::ranges::find(added, name, &AddedToken::content);
  if (token != added.end()) return token->id;
  const auto found = vocabulary.find(std::string(name));
  return found == vocabulary.end() ? std::nullopt : std::optional(found->second);
}

std::string PipelineTokenizer::description() const {
  return fmt::format("{}, {} tokens, {}", parts_.model->kind(), parts_.size,
                     parts_.model->details());
}

}  // namespace recurve

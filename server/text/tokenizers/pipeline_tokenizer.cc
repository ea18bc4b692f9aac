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
  // Control tokens first: they win where two tokens look the same.
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
  for (size_t id = 0; id < parts_.texts.size(); ++id) bytes_[id] = parts_.texts[id].bytes;
  space_mark_.resize(bytes_.size());
  for (size_t id = 0; id < bytes_.size(); ++id) {
    space_mark_[id] =
        parts_.texts.empty() ? bytes_[id].starts_with(' ') : parts_.texts[id].has_space_mark;
  }
}

void PipelineTokenizer::set_text(int32_t id, std::string_view name) {
  const auto i = static_cast<size_t>(id);
  bytes_[i] = parts_.decoder.bytes_of(name, /*first=*/false);
  if (!first_bytes_.empty()) first_bytes_[i] = parts_.decoder.bytes_of(name, /*first=*/true);
}

// The stages of a text's way to ids, each of which gives on what has become certain.
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
        words_(cutter(position, /*first=*/position == TextPosition::kStart)),
        model_(tokenizer.parts_.model->encoder()) {}

  // Small parts are read together: more of them the longer the text that waits for what follows, so
  // that what is looked at again and again costs no more than a few times its length.
  void push(std::string_view utf8, bool last, std::vector<int32_t>* ids) override {
    constexpr size_t kReadTogether = 4096;
    limits_.check();
    unread_.append(utf8);
    if (!last && unread_.size() < std::max(kReadTogether, behind() / 2)) return;
    read(last, ids);
  }

  void set_special(SpecialTokens special, std::vector<int32_t>* ids) override {
    read(false, ids);
    trusted_ = special == SpecialTokens::kParse;
  }

  size_t held() const override { return unread_.size() + behind() + words_.held(); }

 private:
  size_t behind() const { return in_raw_.held() + normalization_.held() + in_normal_.held(); }

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

  // Text between two tokens, as it was written; `last`: it ends here.
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
    if (last) words_ = cutter(TextPosition::kStart, /*first=*/false);
  }

  WordCutter cutter(TextPosition position, bool first) const {
    return {tokenizer_.parts_.pre_tokenizer, *tokenizer_.parts_.model, limits_, position, first};
  }

  const PipelineTokenizer& tokenizer_;
  const WorkLimits limits_;
  std::string unread_;
  bool trusted_;  // what is unread
  AddedTokenScanner in_raw_;
  Normalization normalization_;
  bool normalization_trusted_ = false;  // what it holds
  AddedTokenScanner in_normal_;
  WordCutter words_;
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

std::optional<int32_t> PipelineTokenizer::id_of(std::string_view name) const {
  for (const AddedToken& token : parts_.added) {
    if (token.content == name) return token.id;
  }
  const auto found = parts_.vocabulary.find(std::string(name));
  if (found == parts_.vocabulary.end()) return std::nullopt;
  return found->second;
}

std::string PipelineTokenizer::description() const {
  if (!parts_.description.empty()) return parts_.description;
  return fmt::format("{}, {} tokens, {}", parts_.model->kind(), parts_.size,
                     parts_.model->details());
}

}  // namespace recurve

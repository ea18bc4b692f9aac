#include "server/constraint/after_reasoning.h"

#include <algorithm>
#include <utility>

namespace recurve {
namespace {

void add(int32_t id, ReasoningTokens::Mask* mask) {
  (*mask)[static_cast<size_t>(id) / 32] |= uint32_t{1} << (static_cast<size_t>(id) % 32);
}

bool is_breaks(std::string_view text) {
  return text.find_first_not_of('\n') == std::string_view::npos;
}

class AfterReasoningMatcher final : public Matcher {
 public:
  AfterReasoningMatcher(std::shared_ptr<const Constraint> constraint,
                        std::shared_ptr<const ReasoningTokens> tokens, uint64_t client, bool inside,
                        size_t written)
      : constraint_(std::move(constraint)),
        tokens_(std::move(tokens)),
        client_(client),
        phase_(inside ? Phase::kInside : Phase::kMayOpen),
        written_(written),
        answer_begins_(!inside && written == 0) {}

  bool accept(int32_t id) override {
    switch (phase_) {
      case Phase::kMayOpen:
        return accept_opening(id);
      case Phase::kInside:
        return accept_inside(id);
      case Phase::kBreaks:
        return accept_break(id);
      case Phase::kAnswer:
        break;
    }
    return answer().accept(id);
  }

  void fill(std::span<uint32_t> mask) override {
    std::ranges::fill(mask, 0);
    const bool has_answer = phase_ == Phase::kAnswer || phase_ == Phase::kBreaks || answer_begins_;
    if (has_answer) answer().fill(mask);
    const auto change = [&](const ReasoningTokens::Mask& other, bool adds) {
      for (size_t w = 0; w < std::min(mask.size(), other.size()); ++w) {
        mask[w] = adds ? mask[w] | other[w] : mask[w] & ~other[w];
      }
    };
    if (phase_ == Phase::kMayOpen) change(tokens_->opening(written_), true);
    if (phase_ == Phase::kInside) change(tokens_->inside(matched_), true);
    if (phase_ != Phase::kBreaks || breaks_left() == 0) return;
    change(tokens_->begin_with_break(), false);
    change(tokens_->breaks(breaks_left()), true);
  }

  bool may_end() const override {
    if (phase_ == Phase::kInside || (phase_ == Phase::kMayOpen && !answer_begins_)) return false;
    return answer().may_end();
  }

  std::unique_ptr<Matcher> fork() const override {
    auto fork = std::make_unique<AfterReasoningMatcher>(constraint_, tokens_, client_, false, 0);
    fork->phase_ = phase_;
    fork->written_ = written_;
    fork->matched_ = matched_;
    fork->breaks_ = breaks_;
    fork->answer_begins_ = answer_begins_;
    if (answer_ != nullptr) fork->answer_ = answer_->fork();
    return fork;
  }

 private:
  enum class Phase { kMayOpen, kInside, kBreaks, kAnswer };

  Matcher& answer() const {
    if (answer_ == nullptr) answer_ = constraint_->begin(client_);
    return *answer_;
  }
  size_t breaks_left() const { return tokens_->tags().most_breaks - breaks_; }

  // Both may be true of the text so far: it begins the open tag, and it begins the answer.
  bool accept_opening(int32_t id) {
    const ReasoningTokens::Tags& tags = tokens_->tags();
    const std::string_view rest = std::string_view(tags.open).substr(written_);
    const std::string_view text = id == tags.open_id ? tags.open : tokens_->text_of(id);
    const bool completes = !text.empty() && text.starts_with(rest);
    if (completes && enter(text.substr(rest.size()))) return true;
    const bool continues = !completes && !text.empty() && rest.starts_with(text);
    const bool answers = answer_begins_ && answer().accept(id);
    if (continues) {
      written_ += text.size();
      answer_begins_ = answers;
      return true;
    }
    if (answers) phase_ = Phase::kAnswer;
    return answers;
  }

  // The reasoning begins with this text.
  bool enter(std::string_view text) {
    if (!follow(text)) return false;
    answer_.reset();
    answer_begins_ = false;
    return true;
  }

  bool accept_inside(int32_t id) {
    const ReasoningTokens::Tags& tags = tokens_->tags();
    const std::string_view text = id == tags.close_id ? tags.close : tokens_->text_of(id);
    return !text.empty() && follow(text);
  }

  bool follow(std::string_view text) {
    int breaks = -1;
    if (!tokens_->follow(text, &matched_, &breaks)) return false;
    phase_ = breaks < 0 ? Phase::kInside : Phase::kBreaks;
    breaks_ = static_cast<size_t>(std::max(breaks, 0));
    return true;
  }

  bool accept_break(int32_t id) {
    const std::string_view text = tokens_->text_of(id);
    if (text.starts_with('\n') && breaks_left() > 0) {
      if (!is_breaks(text) || text.size() > breaks_left()) return false;
      breaks_ += text.size();
      return true;
    }
    if (!answer().accept(id)) return false;
    phase_ = Phase::kAnswer;
    return true;
  }

  const std::shared_ptr<const Constraint> constraint_;
  const std::shared_ptr<const ReasoningTokens> tokens_;
  const uint64_t client_;
  Phase phase_;
  size_t written_;      // bytes of the open tag
  size_t matched_ = 0;  // bytes of the close tag
  size_t breaks_ = 0;   // after the close tag
  bool answer_begins_;  // the text so far also begins the answer
  mutable std::unique_ptr<Matcher> answer_;
};

class AfterReasoning final : public Constraint {
 public:
  AfterReasoning(std::shared_ptr<const Constraint> constraint,
                 std::shared_ptr<const ReasoningTokens> tokens, bool inside, size_t written)
      : constraint_(std::move(constraint)),
        tokens_(std::move(tokens)),
        inside_(inside),
        written_(written) {}

  std::unique_ptr<Matcher> begin(uint64_t client) const override {
    return std::make_unique<AfterReasoningMatcher>(constraint_, tokens_, client, inside_, written_);
  }
  size_t bytes() const override { return constraint_->bytes(); }
  const ConstraintText& text() const override { return constraint_->text(); }

 private:
  const std::shared_ptr<const Constraint> constraint_;
  const std::shared_ptr<const ReasoningTokens> tokens_;
  const bool inside_;
  const size_t written_;
};

// Bytes of `tag` that end the text, after this byte; `matched` before it.
size_t next_match(std::string_view tag, size_t matched, char byte) {
  std::string text(tag.substr(0, matched));
  text += byte;
  size_t length = std::min(text.size(), tag.size());
  while (!tag.starts_with(std::string_view(text).substr(text.size() - length))) --length;
  return length;
}

}  // namespace

ReasoningTokens::ReasoningTokens(Tags tags, TextOf text_of, int32_t ids)
    : tags_(std::move(tags)), text_of_(std::move(text_of)) {
  const Mask none((static_cast<size_t>(ids) + 31) / 32);
  inside_.assign(tags_.close.size(), none);
  opening_.assign(tags_.open.size(), none);
  breaks_.assign(tags_.most_breaks + 1, none);
  begin_with_break_ = none;
  const std::string_view open = tags_.open;
  for (int32_t id = 0; id < ids; ++id) {
    const std::string_view text = text_of_(id);
    if (id == tags_.close_id) {
      for (Mask& mask : inside_) add(id, &mask);
    }
    if (id == tags_.open_id) add(id, &opening_[0]);
    if (text.empty()) continue;
    const bool may_close = text.find(tags_.close.back()) != std::string_view::npos;
    for (size_t matched = 0; matched < inside_.size(); ++matched) {
      size_t after = matched;
      int breaks = -1;
      if (!may_close || follow(text, &after, &breaks)) add(id, &inside_[matched]);
    }
    for (size_t written = 0; written < opening_.size(); ++written) {
      const std::string_view rest = open.substr(written);
      size_t matched = 0;
      int breaks = -1;
      const bool completes =
          text.starts_with(rest) && follow(text.substr(rest.size()), &matched, &breaks);
      if (completes || (rest.starts_with(text) && rest != text)) add(id, &opening_[written]);
    }
    if (text.front() == '\n') add(id, &begin_with_break_);
    for (size_t most = 1; most < breaks_.size(); ++most) {
      if (is_breaks(text) && text.size() <= most) add(id, &breaks_[most]);
    }
  }
}

bool ReasoningTokens::follow(std::string_view text, size_t* matched, int* breaks) const {
  size_t now = *matched;
  for (size_t at = 0; at < text.size(); ++at) {
    now = next_match(tags_.close, now, text[at]);
    if (now < tags_.close.size()) continue;
    const std::string_view rest = text.substr(at + 1);
    if (!is_breaks(rest) || rest.size() > tags_.most_breaks) return false;
    *matched = 0;
    *breaks = static_cast<int>(rest.size());
    return true;
  }
  *matched = now;
  *breaks = -1;
  return true;
}

std::shared_ptr<const Constraint> after_reasoning(std::shared_ptr<const Constraint> constraint,
                                                  std::shared_ptr<const ReasoningTokens> tokens,
                                                  bool inside, size_t written) {
  return std::make_shared<AfterReasoning>(std::move(constraint), std::move(tokens), inside,
                                          written);
}

}  // namespace recurve

#include "server/text/chat/reasoning.h"

#include <algorithm>

#include "server/text/chat/value_types.h"

namespace recurve {
namespace {

constexpr ReasoningForm kReasoningForms[] = {
    {.open = "<think>", .close = "</think>"},  // Qwen, Nemotron, RWKV and most others
    {.open = "[THINK]", .close = "[/THINK]"},  // Mistral
};

// The open tag without its last byte, with which some prompts end.
std::string_view most_of(std::string_view open) { return open.substr(0, open.size() - 1); }

}  // namespace

const ReasoningForm* reasoning_form_of(std::string_view chat_template) {
  const auto* found = std::ranges::find_if(kReasoningForms, [&](const ReasoningForm& form) {
    return chat_template.find(most_of(form.open)) != std::string_view::npos;
  });
  return found == std::end(kReasoningForms) ? nullptr : found;
}

ReasoningStart reasoning_start_of(const ReasoningForm& form, std::string_view prompt) {
  using Phase = ReasoningStart::Phase;
  const std::string_view text = trimmed(prompt);
  if (text.ends_with(form.open)) return {.phase = Phase::kInside};
  if (text.ends_with(form.close)) return {.phase = Phase::kOver};
  const std::string_view most = most_of(form.open);
  return {.phase = Phase::kMayOpen, .opened = prompt.ends_with(most) ? most.size() : 0};
}

ReasoningParser::ReasoningParser(const ReasoningForm& form, ReasoningStart start) : form_(form) {
  if (start.phase == ReasoningStart::Phase::kInside) state_ = State::kAfterOpen;
  if (start.phase == ReasoningStart::Phase::kOver) state_ = State::kAnswer;
  if (state_ != State::kStart) return;
  held_ = form.open.substr(0, start.opened);
  written_ = held_.size();
}

void ReasoningParser::feed(std::string_view text, std::string* reasoning, std::string* answer) {
  held_ += text;
  while (step(reasoning, answer)) {
  }
}

void ReasoningParser::finish(std::string* reasoning, std::string* answer) {
  if (state_ == State::kStart) held_.erase(0, written_);
  *(inside() ? reasoning : answer) += held_;
  held_.clear();
}

// Whether there may be another step.
bool ReasoningParser::step(std::string* reasoning, std::string* answer) {
  switch (state_) {
    case State::kStart:
      return read_start();
    case State::kAfterOpen:
      if (held_.empty()) return false;
      if (held_.front() == '\n') held_.erase(0, 1);
      state_ = State::kInside;
      return true;
    case State::kInside:
      return read_inside(reasoning);
    case State::kAfterClose:
      while (breaks_ < kMostBreaks && held_.starts_with('\n')) {
        held_.erase(0, 1);
        ++breaks_;
      }
      if (held_.empty() && breaks_ < kMostBreaks) return false;
      state_ = State::kAnswer;
      return true;
    case State::kAnswer:
      *answer += held_;
      held_.clear();
      break;
  }
  return false;
}

bool ReasoningParser::read_start() {
  if (held_.starts_with(form_.open)) {
    held_.erase(0, form_.open.size());
    state_ = State::kAfterOpen;
    return true;
  }
  if (form_.open.starts_with(held_)) return false;
  held_.erase(0, written_);
  state_ = State::kAnswer;
  return true;
}

bool ReasoningParser::read_inside(std::string* reasoning) {
  const size_t close = held_.find(form_.close);
  const bool closes = close != std::string::npos;
  size_t certain = closes ? close : held_.size() - begun(held_, form_.close);
  if (certain > 0 && held_[certain - 1] == '\n') --certain;
  reasoning->append(held_, 0, certain);
  held_.erase(0, closes ? close + form_.close.size() : certain);
  if (closes) state_ = State::kAfterClose;
  return closes;
}

}  // namespace recurve

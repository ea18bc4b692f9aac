#include "server/text/chat/tool_call_parser.h"

#include <algorithm>
#include <optional>

namespace recurve {
namespace {

constexpr size_t kMostHead = 1024;  // bytes between the mark and the arguments

bool is_json_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

bool is_blank_json(std::string_view text) { return std::ranges::all_of(text, is_json_space); }

// Reads from the start of a text that may go on.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  void spaces() {
    while (at_ < text_.size() && is_json_space(text_[at_])) ++at_;
  }
  // Whether the text goes on with this; where it has ended before that is known, `short_of_text`.
  bool take(std::string_view wanted) {
    const std::string_view there = text_.substr(at_, wanted.size());
    if (there.size() < wanted.size()) {
      short_ |= wanted.starts_with(there);
      return false;
    }
    if (there != wanted) return false;
    at_ += wanted.size();
    return true;
  }
  bool take_after_spaces(std::string_view wanted) {
    spaces();
    return take(wanted);
  }
  // Up to the next quote; none of JSON's escapes is in a name.
  std::optional<std::string> name() {
    const size_t end = text_.find('"', at_);
    if (end == std::string_view::npos) {
      short_ = true;
      return std::nullopt;
    }
    std::string name(text_.substr(at_, end - at_));
    at_ = end + 1;
    return name;
  }
  size_t at() const { return at_; }
  bool short_of_text() const { return short_; }
  bool next_is(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool ended() const { return at_ == text_.size(); }

 private:
  const std::string_view text_;
  size_t at_ = 0;
  bool short_ = false;
};

}  // namespace

ToolCallParser::ToolCallParser(const ToolForm& form)
    : form_(form), mark_(mark_token(form)), close_(close_token(form)) {}

void ToolCallParser::feed(std::string_view text, std::string* content,
                          std::vector<ToolCallPart>* calls) {
  held_ += text;
  while (step({content, calls})) {
  }
}

void ToolCallParser::finish(std::string* content) {
  const bool between = index_ >= 0 && is_blank_json(held_);
  if (state_ == State::kStart || (state_ == State::kText && !between)) *content += held_;
  if (state_ == State::kHead) *content += read_ + held_;
  held_.clear();
}

// Whether there may be more to read.
bool ToolCallParser::step(const Out& out) {
  switch (state_) {
    case State::kStart:
      return read_start();
    case State::kText:
      return read_text(out);
    case State::kHead:
      return read_head(out);
    case State::kArguments:
      return read_arguments(out);
    case State::kTail:
      return read_tail();
    case State::kRest:  // nothing but calls would be read
      *out.content += held_;
      held_.clear();
      break;
  }
  return false;
}

bool ToolCallParser::read_start() {
  if (form_.shape != ToolForm::Shape::kWhole) {
    state_ = State::kText;
    return true;
  }
  Reader reader(held_);
  reader.spaces();
  if (reader.ended() && held_.size() < kMostHead) return false;
  state_ = reader.next_is('{') ? State::kHead : State::kRest;
  return true;
}

// Up to the mark; what may be its beginning is held back.
bool ToolCallParser::read_text(const Out& out) {
  const size_t found = held_.find(mark_);
  if (found != std::string::npos) {
    // White space between two calls is none of the answer's text.
    const std::string text = held_.substr(0, found);
    if (index_ < 0 || !is_blank_json(text)) *out.content += text;
    read_ = mark_;
    held_.erase(0, found + mark_.size());
    state_ = State::kHead;
    return true;
  }
  size_t kept = std::min(held_.size(), mark_.size() - 1);
  while (!mark_.starts_with(std::string_view(held_).substr(held_.size() - kept))) --kept;
  const std::string_view said = std::string_view(held_).substr(0, held_.size() - kept);
  if (index_ >= 0 && is_blank_json(said) && held_.size() < kMostHead) return false;
  *out.content += said;
  held_.erase(0, said.size());
  return false;
}

bool ToolCallParser::read_head(const Out& out) {
  Reader reader(held_);
  const bool first = index_ < 0 || form_.shape != ToolForm::Shape::kList;
  bool reads = true;
  if (form_.shape == ToolForm::Shape::kList && first) reads = reader.take_after_spaces("[");
  std::optional<std::string> name;
  reads = reads && reader.take_after_spaces("{") && reader.take_after_spaces("\"name\"") &&
          reader.take_after_spaces(":") && reader.take_after_spaces("\"") &&
          (name = reader.name()) && reader.take_after_spaces(",") &&
          reader.take_after_spaces("\"" + std::string(form_.arguments) + "\"") &&
          reader.take_after_spaces(":");
  if (reads) {
    reader.spaces();
    if (reader.next_is('{')) {
      out.calls->push_back({.index = ++index_, .name = *std::move(name)});
      held_.erase(0, reader.at());
      read_.clear();
      state_ = State::kArguments;
      return true;
    }
    reads = reader.ended();
  }
  if ((reads || reader.short_of_text()) && held_.size() < kMostHead) return false;
  give_up();
  return true;
}

// What was held reads as text after all, but for the mark, which would be found again.
void ToolCallParser::give_up() {
  held_ = read_ + held_;
  read_.clear();
  state_ = State::kRest;
}

bool ToolCallParser::read_arguments(const Out& out) {
  size_t at = 0;
  bool ends = false;
  for (; at < held_.size() && !ends; ++at) {
    const char c = held_[at];
    if (in_string_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
      }
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      ends = --depth_ == 0;
    }
  }
  if (at > 0) {
    if (out.calls->empty() || out.calls->back().index != index_) {
      out.calls->push_back({.index = index_});
    }
    out.calls->back().arguments += held_.substr(0, at);
    held_.erase(0, at);
  }
  if (!ends) return false;
  ++whole_;
  state_ = State::kTail;
  return true;
}

// What closes a call, and what stands in front of the next. Fields behind the arguments (an id) are
// passed over.
bool ToolCallParser::read_tail() {
  const size_t brace = held_.find('}');
  if (brace == std::string::npos) return false;
  Reader reader(std::string_view(held_).substr(brace + 1));
  if (form_.shape == ToolForm::Shape::kWhole) {
    state_ = State::kRest;
  } else if (form_.shape == ToolForm::Shape::kMarked) {
    if (!reader.take_after_spaces(close_) && reader.short_of_text()) return false;
    state_ = State::kText;
  } else {
    reader.spaces();
    if (reader.ended()) return false;
    const bool more = reader.take(",");
    if (!more) reader.take("]");
    state_ = more ? State::kHead : State::kRest;
  }
  held_.erase(0, brace + 1 + reader.at());
  return true;
}

}  // namespace recurve

#include "server/text/chat/tool_call_parser.h"

#include <algorithm>
#include <optional>

namespace recurve {
namespace {

constexpr size_t kMaxHead = 1024;  // most bytes between the mark and the arguments

bool is_json_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

bool is_blank_json(std::string_view text) { return std::ranges::all_of(text, is_json_space); }

// Parses the beginning of a text to which more may be added.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  void spaces() {
    while (at_ < text_.size() && is_json_space(text_[at_])) ++at_;
  }
  // Skips `wanted` if the text continues with it. Sets is_truncated() if the text ends before that
  // is known.
  bool take(std::string_view wanted) {
    const std::string_view found = text_.substr(at_, wanted.size());
    if (found.size() < wanted.size()) {
      truncated_ |= wanted.starts_with(found);
      return false;
    }
    if (found != wanted) return false;
    at_ += wanted.size();
    return true;
  }
  bool take_after_spaces(std::string_view wanted) {
    spaces();
    return take(wanted);
  }
  // The text up to the next quote: names have no escapes.
  std::optional<std::string> name() {
    const size_t end = text_.find('"', at_);
    if (end == std::string_view::npos) {
      truncated_ = true;
      return std::nullopt;
    }
    std::string name(text_.substr(at_, end - at_));
    at_ = end + 1;
    return name;
  }
  size_t at() const { return at_; }
  bool is_truncated() const { return truncated_; }
  bool next_is(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool ended() const { return at_ == text_.size(); }

 private:
  const std::string_view text_;
  size_t at_ = 0;
  bool truncated_ = false;
};

// Of several formats that match a template, the first is chosen.
constexpr ToolForm kToolForms[] = {
    {.name = "qwen3.5",
     .shape = ToolForm::Shape::kParameters,
     .signs = {kFunctionMark, kParameterMark},
     .mark = "<tool_call>\n",
     .close = "\n</tool_call>",
     .arguments = "",
     .id_prefix = "call_",
     .id_characters = 16},
    // Hermes, Qwen and other models with ChatML.
    {.name = "hermes",
     .shape = ToolForm::Shape::kMarked,
     .signs = {"<tool_call>", "\"arguments\""},
     .mark = "<tool_call>\n",
     .close = "\n</tool_call>",
     .arguments = "arguments",
     .id_prefix = "call_",
     .id_characters = 16},
    {.name = "mistral",
     .shape = ToolForm::Shape::kList,
     .signs = {"[TOOL_CALLS]", ""},
     .mark = "[TOOL_CALLS] ",
     .close = "",
     .arguments = "arguments",
     .id_prefix = "",
     .id_characters = 9},
    {.name = "nemotron",
     .shape = ToolForm::Shape::kList,
     .signs = {"<TOOLCALL>", ""},
     .mark = "<TOOLCALL>",
     .close = "</TOOLCALL>",
     .arguments = "arguments",
     .id_prefix = "call_",
     .id_characters = 16},
    {.name = "llama-3",
     .shape = ToolForm::Shape::kWhole,
     .signs = {"\"parameters\": ", "<|start_header_id|>"},
     .mark = "",
     .close = "",
     .arguments = "parameters",
     .id_prefix = "call_",
     .id_characters = 16},
};

}  // namespace

ToolCallParser::ToolCallParser(const ToolForm& form, const ToolTypes* types, bool exclusive)
    : form_(form),
      types_(types),
      exclusive_(exclusive),
      mark_(mark_token(form)),
      close_(close_token(form)) {}

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

// Whether there may be another step.
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
    case State::kRest:  // the rest is text
      *out.content += held_;
      held_.clear();
      break;
  }
  return false;
}

bool ToolCallParser::read_start() {
  Reader reader(held_);
  if (form_.shape != ToolForm::Shape::kWhole) {
    const bool calls = !exclusive_ || reader.take_after_spaces(mark_);
    if (!calls && reader.is_truncated() && held_.size() < kMaxHead) return false;
    state_ = calls ? State::kText : State::kRest;
    return true;
  }
  reader.spaces();
  if (reader.ended() && held_.size() < kMaxHead) return false;
  state_ = reader.next_is('{') ? State::kHead : State::kRest;
  return true;
}

// Passes on the text up to the mark. Holds back what may be its beginning.
bool ToolCallParser::read_text(const Out& out) {
  const size_t found = held_.find(mark_);
  if (found != std::string::npos) {
    // White space between two calls is not text of the answer.
    const std::string text = held_.substr(0, found);
    if (index_ < 0 || !is_blank_json(text)) *out.content += text;
    read_ = mark_;
    held_.erase(0, found + mark_.size());
    state_ = State::kHead;
    return true;
  }
  size_t tail = std::min(held_.size(), mark_.size() - 1);
  while (!mark_.starts_with(std::string_view(held_).substr(held_.size() - tail))) --tail;
  const std::string_view text = std::string_view(held_).substr(0, held_.size() - tail);
  if (index_ >= 0 && is_blank_json(text) && held_.size() < kMaxHead) return false;
  *out.content += text;
  held_.erase(0, text.size());
  return false;
}

bool ToolCallParser::read_head(const Out& out) {
  if (form_.shape == ToolForm::Shape::kParameters) return read_function(out);
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
  if ((reads || reader.is_truncated()) && held_.size() < kMaxHead) return false;
  reject_call();
  return true;
}

bool ToolCallParser::read_function(const Out& out) {
  static const ToolParameters kAnyParameters;
  Reader reader(held_);
  const size_t end = held_.find('>');
  const bool marked = reader.take_after_spaces(kFunctionMark);
  if (marked && end != std::string::npos && end > reader.at() && end < kMaxHead) {
    std::string name = held_.substr(reader.at(), end - reader.at());
    const auto tool = types_ == nullptr ? ToolTypes::const_iterator() : types_->find(name);
    const bool known = types_ != nullptr && tool != types_->end();
    held_.erase(0, end + 1);
    read_.clear();
    out.calls->push_back({.index = ++index_, .name = std::move(name)});
    parameters_.begin(known ? tool->second : kAnyParameters, &out.calls->back().arguments);
    state_ = State::kArguments;
    return true;
  }
  const bool may_follow = reader.is_truncated() || (marked && end == std::string::npos);
  if (may_follow && held_.size() < kMaxHead) return false;
  reject_call();
  return true;
}

// Treats the input since the mark, and all that follows, as text.
void ToolCallParser::reject_call() {
  held_ = read_ + held_;
  read_.clear();
  state_ = State::kRest;
}

// Where new arguments of the last call are appended.
std::string* ToolCallParser::arguments_of_call(const Out& out) {
  if (out.calls->empty() || out.calls->back().index != index_) {
    out.calls->push_back({.index = index_});
  }
  return &out.calls->back().arguments;
}

bool ToolCallParser::read_parameters(const Out& out) {
  std::string arguments;
  const ParameterReader::Outcome outcome = parameters_.read(&held_, &arguments);
  if (!arguments.empty()) *arguments_of_call(out) += arguments;
  if (outcome == ParameterReader::Outcome::kMore) return false;
  const bool complete = outcome == ParameterReader::Outcome::kEnd;
  whole_ += complete ? 1 : 0;
  state_ = complete ? State::kTail : State::kRest;
  return true;
}

bool ToolCallParser::read_arguments(const Out& out) {
  if (form_.shape == ToolForm::Shape::kParameters) return read_parameters(out);
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
    *arguments_of_call(out) += held_.substr(0, at);
    held_.erase(0, at);
  }
  if (!ends) return false;
  ++whole_;
  state_ = State::kTail;
  return true;
}

// Skips the end of a call, with fields after the arguments (an id), and what separates it from the
// next.
bool ToolCallParser::read_tail() {
  if (form_.shape == ToolForm::Shape::kParameters) {
    Reader reader(held_);
    if (!reader.take_after_spaces(close_) && reader.is_truncated()) return false;
    held_.erase(0, reader.at());
    state_ = State::kText;
    return true;
  }
  const size_t brace = held_.find('}');
  if (brace == std::string::npos) return false;
  Reader reader(std::string_view(held_).substr(brace + 1));
  if (form_.shape == ToolForm::Shape::kWhole) {
    state_ = State::kRest;
  } else if (form_.shape == ToolForm::Shape::kMarked) {
    if (!reader.take_after_spaces(close_) && reader.is_truncated()) return false;
    state_ = State::kText;
  } else {
    reader.spaces();
    if (reader.ended()) return false;
    const bool more = reader.take(",");
    const bool ends = !more && reader.take("]");
    if (ends && !close_.empty() && !reader.take_after_spaces(close_) && reader.is_truncated()) {
      return false;
    }
    state_ = more ? State::kHead : State::kRest;
  }
  held_.erase(0, brace + 1 + reader.at());
  return true;
}

const ToolForm* tool_form_of(std::string_view chat_template) {
  const auto* found = std::ranges::find_if(kToolForms, [&](const ToolForm& form) {
    return std::ranges::all_of(form.signs, [&](std::string_view sign) {
      return chat_template.find(sign) != std::string_view::npos;
    });
  });
  return found == std::end(kToolForms) ? nullptr : found;
}

std::string tool_form_names() {
  std::string names;
  for (const ToolForm& form : kToolForms)
    names += (names.empty() ? "" : ", ") + std::string(form.name);
  return names;
}

std::string_view mark_token(const ToolForm& form) { return trimmed(form.mark); }
std::string_view close_token(const ToolForm& form) { return trimmed(form.close); }

}  // namespace recurve

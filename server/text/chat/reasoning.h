#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace recurve {

// The tags around the reasoning of a model, which comes before its answer.
struct ReasoningForm {
  std::string_view open, close;
};

// The form of a chat template; null: it has none.
const ReasoningForm* reasoning_form_of(std::string_view chat_template);

// Where the answer to a prompt begins.
struct ReasoningStart {
  enum class Phase {
    kMayOpen,  // the answer may begin with reasoning
    kInside,   // the prompt has opened it
    kOver,     // the prompt has closed it
  };
  Phase phase = Phase::kMayOpen;
  size_t opened = 0;  // bytes of the open tag that end the prompt; with kMayOpen
};
// The start after a prompt that ends with this text, which the template has written.
ReasoningStart reasoning_start_of(const ReasoningForm& form, std::string_view prompt);

// Most line breaks between the reasoning and the answer, which belong to neither.
inline constexpr size_t kMostBreaks = 2;

// Separates the reasoning from the answer, while both are generated. The result does not depend on
// how the text is divided. One line break after the open tag and one before the close tag belong to
// neither part; nor do up to kMostBreaks after the close tag.
class ReasoningParser {
 public:
  // The form outlives it.
  ReasoningParser(const ReasoningForm& form, ReasoningStart start);

  // Takes the next part of the text. Appends what is certain now.
  void feed(std::string_view text, std::string* reasoning, std::string* answer);
  // Ends the text. Appends the rest.
  void finish(std::string* reasoning, std::string* answer);

  // Whether a tag can come next.
  bool may_open() const { return state_ == State::kStart; }
  bool inside() const { return state_ == State::kAfterOpen || state_ == State::kInside; }

 private:
  enum class State { kStart, kAfterOpen, kInside, kAfterClose, kAnswer };

  bool step(std::string* reasoning, std::string* answer);
  bool read_start();
  bool read_inside(std::string* reasoning);

  const ReasoningForm& form_;
  State state_ = State::kStart;
  std::string held_;    // input that is not processed yet
  size_t written_ = 0;  // bytes at its front that are in the prompt
  size_t breaks_ = 0;   // after the close tag
};

}  // namespace recurve

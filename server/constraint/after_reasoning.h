#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/constraint/constraint.h"

namespace recurve {

// How the tokens of a vocabulary write the tags around a model's reasoning. Constant: any thread.
class ReasoningTokens {
 public:
  struct Tags {
    std::string open, close;
    int32_t open_id = -1, close_id = -1;  // if they are control tokens
    size_t most_breaks = 0;               // line breaks after the close tag, before the answer
  };
  using TextOf = std::function<std::string_view(int32_t id)>;  // "" for control tokens

  // For ids in [0, ids). `text_of` is also used later.
  ReasoningTokens(Tags tags, TextOf text_of, int32_t ids);

  // Follows a text within the reasoning. `matched`: bytes of the close tag that end it. False if
  // the text closes the reasoning and continues with more than line breaks; without a change then.
  // If it closes it, `breaks` are those after the tag, and otherwise -1.
  bool follow(std::string_view text, size_t* matched, int* breaks) const;

  using Mask = std::vector<uint32_t>;
  // The ids that may come within the reasoning.
  const Mask& inside(size_t matched) const { return inside_[matched]; }
  // The ids that continue the open tag, or complete it.
  const Mask& opening(size_t written) const { return opening_[written]; }
  // The ids of up to `most` line breaks; and all that begin with one.
  const Mask& breaks(size_t most) const { return breaks_[most]; }
  const Mask& begin_with_break() const { return begin_with_break_; }

  const Tags& tags() const { return tags_; }
  std::string_view text_of(int32_t id) const { return text_of_(id); }

 private:
  const Tags tags_;
  const TextOf text_of_;
  std::vector<Mask> inside_, opening_, breaks_;
  Mask begin_with_break_;
};

// The constraint for an answer that begins after reasoning, which is free. The text may not end
// within the reasoning. `inside`: the prompt has opened it; otherwise the answer may begin with it,
// after `written` bytes of the open tag that end the prompt.
std::shared_ptr<const Constraint> after_reasoning(std::shared_ptr<const Constraint> constraint,
                                                  std::shared_ptr<const ReasoningTokens> tokens,
                                                  bool inside, size_t written);

}  // namespace recurve

#pragma once
#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/request/end_reason.h"
#include "server/request/session_command.h"
#include "server/request/token_stream.h"
#include "server/text/cut.h"

namespace recurve {

// Why something is not done that was asked for. Each frontend says it in the form of its protocol,
// which nothing behind a frontend knows.
struct Refusal {
  EndReason reason = EndReason::kInternal;
  std::string message = {};                  // a sentence that says what to change
  std::string field = {};                    // what is wrong, with kInvalid; empty: no one field
  std::optional<double> retry_seconds = {};  // with Retry::kLater: when there may be room

  const EndRow& row() const { return row_of(reason); }
};

// Nothing where nothing is wrong.
using Refused = std::optional<Refusal>;

// Without a message, the reason's sentence.
Refusal refuse(EndReason reason, std::string message = {});

// A refusal of what a field says; the sentence names it too.
template <typename... Args>
Refusal invalid(std::string field, fmt::format_string<Args...> format, Args&&... args) {
  return {.reason = EndReason::kInvalid,
          .message = fmt::format(format, std::forward<Args>(args)...),
          .field = std::move(field)};
}

// Nothing for an answer.
Refused refusal_of(const StreamEnd& end);
Refused refusal_of(const SessionResult& result);

// For logs: "OK", "INVALID_ARGUMENT", ...
std::string_view code_name(const Refused& refusal);

}  // namespace recurve

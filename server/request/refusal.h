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

// Why a request is refused. Each frontend converts it to its protocol.
struct Refusal {
  EndReason reason = EndReason::kInternal;
  std::string message = {};  // a sentence: what is wrong, what to change
  std::string field = {};    // the invalid field, with kInvalid; empty: no single one
  std::optional<double> retry_seconds = {};  // with Retry::kLater

  const EndRow& row() const { return row_of(reason); }
};

// Empty: not refused.
using Refused = std::optional<Refusal>;

// Without a message, the reason's sentence.
Refusal refuse(EndReason reason, std::string message = {});

// A refusal because of a field, which the message must name too.
template <typename... Args>
Refusal invalid(std::string field, fmt::format_string<Args...> format, Args&&... args) {
  return {.reason = EndReason::kInvalid,
          .message = fmt::format(format, std::forward<Args>(args)...),
          .field = std::move(field)};
}

// Empty for an answer.
Refused refusal_of(const StreamEnd& end);
Refused refusal_of(const SessionResult& result);

// For logs: "OK", "INVALID_ARGUMENT", ...
std::string_view code_name(const Refused& refusal);

}  // namespace recurve

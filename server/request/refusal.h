#pragma once
#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/request/session_command.h"
#include "server/request/token_stream.h"
#include "server/text/cut.h"

namespace recurve {

// Why something is not done that was asked for. Each door says it as its protocol does; nothing
// behind a door knows how.
struct Refusal {
  // What it means. Numbered as the canonical codes (google.rpc.Code), by which metrics count them.
  enum class Code {
    kCancelled = 1,     // nobody wants it any more
    kInvalid = 3,       // it cannot be, whoever asks and whenever
    kDeadline = 4,      // its time has passed
    kNotFound = 5,      // what it names is not there
    kExists = 6,        // what it would make is there already
    kForbidden = 7,     // the caller is known, and may not
    kExhausted = 8,     // there is no room for it now
    kBusy = 9,          // the session is busy, or its state is of another model or has no key
    kConflict = 10,     // something has changed since the client looked
    kUnsupported = 12,  // this server does not do it
    kInternal = 13,     // the server has failed on it
    kUnavailable = 14,  // the server loads its model, or goes down
    kDataLoss = 15,     // what was kept is damaged
    kStranger = 16,     // nobody knows who asks
  };

  Code code = Code::kInternal;
  std::string message = {};                  // a sentence that says what to change
  std::string field = {};                    // what is wrong, with kInvalid; empty: no one field
  std::optional<double> retry_seconds = {};  // with kExhausted: when there may be room
};

// Nothing where nothing is wrong.
using Refused = std::optional<Refusal>;

// A refusal of what a field says; the sentence names it too.
template <typename... Args>
Refusal invalid(std::string field, fmt::format_string<Args...> format, Args&&... args) {
  return {.code = Refusal::Code::kInvalid,
          .message = fmt::format(format, std::forward<Args>(args)...),
          .field = std::move(field)};
}

// Nothing for the endings that an answer can have: length, end of text, stop id, stop string.
Refused refusal_of(const Ending& ending);
Refused refusal_of(const SessionResult& result);
// Whether the engine did not begin with the request.
bool is_refusal(Finish why);

// For logs: "OK", "INVALID_ARGUMENT", ...
std::string_view code_name(const Refused& refusal);
// For logs: "length", "eos", ...
std::string_view name_of(Finish why);

}  // namespace recurve

#pragma once
#include <fmt/format.h>
#include <grpcpp/support/status.h>

#include <string_view>
#include <utility>

#include "server/observe/metrics.h"
#include "server/request/session_command.h"
#include "server/request/token_stream.h"

namespace recurve {

template <typename... Args>
grpc::Status invalid(fmt::format_string<Args...> format, Args&&... args) {
  return {grpc::StatusCode::INVALID_ARGUMENT, fmt::format(format, std::forward<Args>(args)...)};
}

// OK for the endings that an answer can have: length, end of text, stop id, stop string.
grpc::Status status_of(const Ending& ending);
grpc::Status status_of(const SessionResult& result);

Metrics::Finish metric_of(Finish why);

// "OK", "INVALID_ARGUMENT", ...
std::string_view name_of(grpc::StatusCode code);
// For logs: "length", "eos", ...
std::string_view name_of(Finish why);

}  // namespace recurve

#pragma once
#include <grpcpp/client_context.h>

#include <chrono>
#include <optional>

namespace recurve {

// When the server would like to be asked again, where the trailers of a call that has ended say so.
std::optional<std::chrono::milliseconds> retry_pushback(const grpc::ClientContext& context);

}  // namespace recurve

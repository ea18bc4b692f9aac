#pragma once
#include <grpcpp/client_context.h>

#include <chrono>
#include <optional>

namespace recurve {

// When to retry, if the trailers of an ended call name a time.
std::optional<std::chrono::milliseconds> retry_pushback(const grpc::ClientContext& context);

}  // namespace recurve

#include "clients/cpp/retry_pushback.h"

#include <charconv>

namespace recurve {

std::optional<std::chrono::milliseconds> retry_pushback(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find("grpc-retry-pushback-ms");
  if (found == trailers.end()) return std::nullopt;
  int64_t milliseconds = 0;
  const grpc::string_ref& value = found->second;
  const auto [end, error] =
      std::from_chars(value.data(), value.data() + value.size(), milliseconds);
  if (error != std::errc() || end != value.data() + value.size() || milliseconds < 0) return {};
  return std::chrono::milliseconds(milliseconds);
}

}  // namespace recurve

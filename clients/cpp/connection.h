#pragma once
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <string>

#include "clients/cpp/client_error.h"

namespace recurve {

// A channel to one server, and what its statuses mean.
class Connection {
 public:
  // Throws std::invalid_argument for an address that is none. Waits for the server for half a
  // second at most: that there is none shows with the first call.
  explicit Connection(std::string address);

  const std::string& address() const { return address_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  // Throws ClientError. `context` is that of the call, which has ended.
  void throw_unless_ok(const grpc::Status& status, const grpc::ClientContext& context) const;

 private:
  std::string address_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace recurve

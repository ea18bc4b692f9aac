#pragma once
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <string>
#include <utility>

#include "clients/cpp/client_error.h"

namespace recurve {

// PEM files that verify the server and identify the client.
struct ClientTls {
  std::string ca = {};    // who must have signed the server's certificate; "system": whom the
                          // system trusts; empty: no TLS is spoken, unless there is a certificate
  std::string cert = {};  // the client's own; empty: none
  std::string key = {};   // and its key
};

// Where a server is, and how it is spoken with.
struct Endpoint {
  Endpoint(std::string address_, ClientTls tls_ = {}, std::string key_ = {})
      : address(std::move(address_)), tls(std::move(tls_)), key(std::move(key_)) {}
  Endpoint(const char* address_) : address(address_) {}

  std::string address;  // HOST:PORT, or another name that gRPC resolves
  ClientTls tls;
  std::string key;  // which each call shows; empty: none
};

// A channel to one server, and what its statuses mean.
class ServerConnection {
 public:
  // Throws std::invalid_argument for an address that is none, or a file that cannot be read. Waits
  // for the server for half a second at most: that there is none shows with the first call.
  explicit ServerConnection(const Endpoint& endpoint);

  const std::string& address() const { return address_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  // Throws ClientError. `context` is that of the call, which has ended.
  void throw_unless_ok(const grpc::Status& status, const grpc::ClientContext& context) const;

 private:
  std::string address_;
  bool tls_ = false;        // is spoken
  bool connected_ = false;  // a server of this protocol has answered at the address
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace recurve

#include "clients/cpp/connection.h"

#include <fmt/format.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/client_interceptor.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "clients/cpp/retry_pushback.h"

namespace recurve {
namespace {

bool is_decimal_port(std::string_view port) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), value);
  return error == std::errc() && end == port.data() + port.size() && value > 0 && value < 65536;
}

// gRPC takes a name without a port for one with port 443, and the resulting error does not name the
// cause.
void check_address(const std::string& address) {
  if (address.starts_with("unix:") || address.starts_with("dns:") || address.starts_with("ipv4:") ||
      address.starts_with("ipv6:")) {
    return;
  }
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || address.find('/') != std::string::npos ||
      !is_decimal_port(std::string_view(address).substr(colon + 1))) {
    throw std::invalid_argument(fmt::format(
        "the server's address must be HOST:PORT, e.g. 127.0.0.1:50051, got '{}'", address));
  }
}

bool is_this_machine(const std::string& address) {
  return address.starts_with("127.") || address.starts_with("localhost:") ||
         address.starts_with("[::1]:") || address.starts_with("unix:");
}

std::string read_pem(const std::string& path) {
  if (path.empty()) return {};
  std::ifstream in(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in || text.find("-----BEGIN ") == std::string::npos) {
    throw std::invalid_argument(fmt::format("\"{}\" cannot be read, or is not a PEM file", path));
  }
  return text;
}

std::shared_ptr<grpc::ChannelCredentials> make_credentials(const ClientTls& tls) {
  if (tls.cert.empty() != tls.key.empty()) {
    throw std::invalid_argument("a client certificate and its key must be given together");
  }
  if (tls.ca.empty() && tls.cert.empty()) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({.pem_root_certs = tls.ca == "system" ? "" : read_pem(tls.ca),
                               .pem_private_key = read_pem(tls.key),
                               .pem_cert_chain = read_pem(tls.cert)});
}

// Shows the key with every call. gRPC's own credentials of calls want TLS, which a socket of this
// machine has not.
class KeyShower final : public grpc::experimental::Interceptor {
 public:
  explicit KeyShower(const std::string& key) : header_("Bearer " + key) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(Point::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace("authorization", header_);
    }
    methods->Proceed();
  }

 private:
  const std::string header_;
};

class KeyShowers final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit KeyShowers(std::string key) : key_(std::move(key)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new KeyShower(key_);
  }

 private:
  const std::string key_;
};

// As a header can carry it. The sentence must not show it.
void check_key(const std::string& key) {
  const auto plain = [](char c) { return c > ' ' && c < 127; };
  if (std::all_of(key.begin(), key.end(), plain)) return;
  throw std::invalid_argument("the key must be one word of ASCII, as `recurve keys new` prints it");
}

std::shared_ptr<grpc::Channel> make_channel(const Endpoint& endpoint) {
  const std::string& address = endpoint.address;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // log-probabilities of a long prompt come in one
  // gRPC would share one socket among all channels of the process to the same address.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Quick to find a server that has just started; the lower bound is the time a connection may
  // take.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  // gRPC would ask the proxy of the environment for this very machine.
  if (is_this_machine(address)) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto credentials = make_credentials(endpoint.tls);
  if (endpoint.key.empty()) return grpc::CreateCustomChannel(address, credentials, arguments);
  check_key(endpoint.key);
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> showers;
  showers.push_back(std::make_unique<KeyShowers>(endpoint.key));
  return grpc::experimental::CreateCustomChannelWithInterceptors(address, credentials, arguments,
                                                                 std::move(showers));
}

// Why the server is unavailable: "loading" or "draining".
bool is_loading(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto state = trailers.find("recurve-state");
  return state != trailers.end() && state->second == "loading";
}

// Empty where the server's sentence has what to do.
std::string hint_for(const grpc::Status& status, const grpc::ClientContext& context,
                     std::optional<std::chrono::milliseconds> retry_after) {
  if (retry_after) return fmt::format("try again in {} ms", retry_after->count());
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
      return is_loading(context) ? "wait for it with: recurve health --wait SECONDS" : "";
    case grpc::StatusCode::UNAUTHENTICATED:
      return "give the key with --key-file FILE, or in RECURVE_KEY";
    case grpc::StatusCode::UNIMPLEMENTED:
      return "use a client of the server's version, and check that it is a Recurve server";
    default:
      return "";
  }
}

// gRPC gives UNAVAILABLE both for a server's answer and for a missing server. A Recurve
// server marks its own (see control.proto, ServerState). The channel's state may have changed
// since.
bool is_lost(const grpc::Status& status, const grpc::ClientContext& context) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE &&
         !context.GetServerTrailingMetadata().contains("recurve-state");
}

// Whether gRPC's words for a failure are those of a connection that was open.
bool was_open(const std::string& cause) {
  for (const char* word : {"reset", "Socket closed", "Broken pipe"}) {
    if (cause.find(word) != std::string::npos) return true;
  }
  return false;
}

// What to do where no answer came, by gRPC's own words for why.
std::string hint_for_lost(const std::string& cause, const std::string& address, bool tls) {
  const auto mentions = [&](std::string_view word) {
    return cause.find(word) != std::string::npos;
  };
  if (tls && (mentions("certificate") || mentions("CERTIFICATE"))) {
    return "use a host name from the server's certificate, and give its CA with --tls-ca";
  }
  if (!tls && was_open(cause)) {
    return "if the server uses TLS, give --tls-ca FILE";
  }
  return fmt::format("start one there: recurve-server --model DIR --listen {}", address);
}

}  // namespace

ServerConnection::ServerConnection(const Endpoint& endpoint)
    : address_(endpoint.address), tls_(!endpoint.tls.ca.empty() || !endpoint.tls.cert.empty()) {
  check_address(address_);
  channel_ = make_channel(endpoint);
  // gRPC up to 1.51 reads the errno of connect() after it has allocated memory, which may have set
  // another: it then reports that there is no server, about once in 2,000 connections. So it is
  // given the time for a second attempt.
  connected_ =
      channel_->WaitForConnected(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
}

void ServerConnection::throw_unless_ok(const grpc::Status& status,
                                       const grpc::ClientContext& context) const {
  using Kind = ClientError::Kind;
  if (status.ok()) return;
  if (is_lost(status, context)) {
    // gRPC tells the whole way to the error; its end is the cause.
    const std::string message = status.error_message();
    const size_t colon = message.rfind(": ");
    const std::string cause = message.substr(colon == std::string::npos ? 0 : colon + 2);
    if (connected_ && was_open(message)) {
      throw ClientError(Kind::kUnreachable, status.error_code(),
                        fmt::format("the connection to {} was lost ({})", address_, cause),
                        "the server ended or the network failed: see the server's log");
    }
    throw ClientError(Kind::kUnreachable, status.error_code(),
                      fmt::format("no server can be reached at {} ({})", address_, cause),
                      hint_for_lost(message, address_, tls_));
  }
  const auto retry_after = retry_pushback(context);
  Kind kind = Kind::kRefused;
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) kind = Kind::kUnavailable;
  if (status.error_code() == grpc::StatusCode::CANCELLED) kind = Kind::kCancelled;
  throw ClientError(kind, status.error_code(), status.error_message(),
                    hint_for(status, context, retry_after), retry_after);
}

}  // namespace recurve

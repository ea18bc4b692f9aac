#include "server/startup/store_access.h"

#include <fmt/format.h>

#include <cstdlib>
#include <stdexcept>

#include "server/net/bind.h"
#include "server/observe/log.h"

namespace recurve {
namespace {

constexpr std::chrono::seconds kImpatience(2);

AwsEnvironment environment() {
  return AwsEnvironment::read([](const char* name) { return std::getenv(name); });
}

// Throws std::runtime_error with a sentence that names the flag.
ObjectStoreTarget target_of(const Options& o, const AwsEnvironment& environment) {
  try {
    return parse_object_store(o.state_store, o.state_endpoint, environment.region);
  } catch (const std::invalid_argument& error) {
    throw std::runtime_error(fmt::format("--state-store, --state-endpoint: {}", error.what()));
  }
}

// HOST:PORT of http[s]://HOST[:PORT].
std::string address_of(const std::string& endpoint) {
  const std::string address = endpoint.substr(endpoint.find("//") + 2);
  const size_t colon = address.rfind(':');
  if (colon != std::string::npos && address.find(']', colon) == std::string::npos) return address;
  return address + (endpoint.starts_with("https:") ? ":443" : ":80");
}

}  // namespace

StoreNeeds needs_of_store(const Options& o) {
  StoreNeeds needs;
  if (o.state_store.empty()) return needs;
  const AwsEnvironment found = environment();
  try {
    const std::string address = address_of(target_of(o, found).endpoint);
    const unsigned long port = std::strtoul(address.c_str() + address.rfind(':') + 1, nullptr, 10);
    if (port <= UINT16_MAX) needs.ports.push_back(static_cast<uint16_t>(port));
  } catch (const std::runtime_error&) {  // StoreAccess reports it
    return needs;
  }
  if (!found.token_file.empty()) needs.ports.push_back(443);  // the security token service
  needs.files = {found.credentials_file, found.token_file, found.ca_file};
  return needs;
}

void check_store_network(const Options& o) {
  if (o.state_store.empty() || o.insecure_network || !o.state_endpoint.starts_with("http://")) {
    return;
  }
  if (is_local_address(address_of(o.state_endpoint), "--state-endpoint")) return;
  throw std::runtime_error(
      fmt::format("--state-endpoint {} is on another machine and has no TLS: give https://, or "
                  "allow it with --insecure-network",
                  o.state_endpoint));
}

StoreAccess::StoreAccess(const Options& o)
    : environment_(environment()),
      http_({.ca_file = environment_.ca_file}),
      credentials_(find_aws_credentials(environment_, "", http_)),
      store_(std::make_unique<ObjectStore>(target_of(o, environment_), environment_.region,
                                           *credentials_, http_, ObjectStore::Options())),
      impatient_store_(
          std::make_unique<ObjectStore>(store_->target(), environment_.region, *credentials_, http_,
                                        ObjectStore::Options{.patience = kImpatience})) {
  if (!o.state_keys.empty()) seal_ = std::make_unique<StoreSeal>(*store_, o.state_keys);
  try {
    store_->check();
    is_checked_ = true;
    log_event(LogLevel::kInfo, "state_store",
              {{"store", o.state_store}, {"endpoint", store_->target().endpoint}});
  } catch (const std::runtime_error& error) {
    if (!o.state_store_optional) {
      throw std::runtime_error(
          fmt::format("--state-store {}: {}; to start without it, give --state-store-optional",
                      o.state_store, error.what()));
    }
    log_event(LogLevel::kError, "state_store_unusable",
              {{"store", o.state_store},
               {"why", error.what()},
               {"effect", "durability remote is refused until it can be used"}});
  }
}

void StoreAccess::stop() {
  store_->stop();
  impatient_store_->stop();
}

}  // namespace recurve

#include "server/serving/access.h"

#include <strings.h>

#include <algorithm>
#include <chrono>
#include <string>

namespace recurve {
namespace {

// The key of the header, if it has one; the scheme is case-insensitive.
std::string_view bearer(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() <= kScheme.size() ||
      strncasecmp(authorization.data(), kScheme.data(), kScheme.size()) != 0) {
    return authorization;  // another scheme: not a key
  }
  authorization.remove_prefix(kScheme.size());
  authorization.remove_prefix(std::min(authorization.find_first_not_of(' '), authorization.size()));
  return authorization.substr(0, authorization.find_last_not_of(' ') + 1);
}

}  // namespace

Identity Access::identify(const Visitor& visitor) const {
  if (keys_ == nullptr) {
    Identity anyone = kAnyone;
    anyone.peer = visitor.address;
    anyone.visitor = visitor_of(visitor.network, visitor.connection);
    return anyone;
  }
  const std::string_view key = bearer(visitor.authorization);
  const std::string network(visitor.network);
  const auto now = std::chrono::steady_clock::now();
  Keyring::Found found = keys_->find(key, visitor.subject, !wrong_tokens_->is_spent(network, now));
  if (found.why == Keyring::Finding::kWrongToken) wrong_tokens_->spend(network, now);
  found.identity.peer = visitor.address;
  if (found.why != Keyring::Finding::kKnown) {
    found.identity.key_id = key_id_of(key);
    audit("authentication", auditee(found.identity), name_of(found.why));
  }
  return found.identity;
}

Refused check_role(const Identity& caller, Role least) {
  if (caller.role >= least) return {};
  if (caller.role != Role::kAnonymous) {
    audit("authorisation", auditee(caller), "PERMISSION_DENIED", name_of(least));
  } else {
    return refuse(EndReason::kUnauthenticated);
  }
  return refuse(EndReason::kForbidden,
                fmt::format("this call needs a key with the role {}, the key has the role {}",
                            name_of(least), name_of(caller.role)));
}

}  // namespace recurve

#pragma once
#include <memory>
#include <string_view>

#include "server/identity/identity.h"
#include "server/identity/keyring.h"
#include "server/observe/audit.h"
#include "server/observe/rate_budget.h"
#include "server/request/refusal.h"

namespace recurve {

// Identifies clients, for all frontends. Thread-safe.
class Access {
 public:
  // keys: null if there are none: every client may do everything.
  explicit Access(std::shared_ptr<Keyring> keys) : keys_(std::move(keys)) {}

  bool has_keys() const { return keys_ != nullptr; }
  struct Visitor {
    std::string_view authorization;  // the header, "Bearer KEY"; empty: none
    std::string_view subject;        // of the verified client certificate; empty: none
    std::string_view address;
    std::string_view network;  // the key of limits by address; empty: this machine
    uint32_t connection = 0;   // Peer's number; 0: none
  };
  // A client that is not identified is in the audit log, with the id of its key, without the
  // secret. Without keys, addresses share the server as tenants do, and the connections of an
  // address share its part.
  Identity identify(const Visitor& visitor) const;
  // Whether the keys file lets the caller's tenant see the initial state or adapter of that name.
  bool sees(const Identity& caller, BoundNames::Kind kind, std::string_view name) const {
    return keys_ == nullptr || keys_->sees(caller.tenant_name, kind, name);
  }

 private:
  // After too many wrong tokens from a network, further tokens are not verified for some time:
  // verifying a wrong signature costs as much as a right one.
  static constexpr RateBudget::Rate kWrongTokens = {.at_once = 100, .per_second = 10};

  const std::shared_ptr<Keyring> keys_;
  const std::shared_ptr<RateBudgets> wrong_tokens_ = std::make_shared<RateBudgets>(kWrongTokens);
};

// The caller in the audit log.
inline Auditee auditee(const Identity& caller) {
  return {caller.tenant_name, caller.key_id, caller.peer};
}

// Refuses a caller without this role or a higher one, and logs that in the audit log.
Refused check_role(const Identity& caller, Role least);

}  // namespace recurve

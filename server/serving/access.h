#pragma once
#include <memory>
#include <string_view>

#include "server/identity/identity.h"
#include "server/identity/keyring.h"
#include "server/observe/audit.h"
#include "server/observe/rate_budget.h"
#include "server/request/refusal.h"

namespace recurve {

// Who asks, for all doors. Thread-safe.
class Access {
 public:
  // keys: null: there are none, and everybody may do everything.
  explicit Access(std::shared_ptr<Keyring> keys) : keys_(std::move(keys)) {}

  bool has_keys() const { return keys_ != nullptr; }
  // How somebody comes.
  struct Visitor {
    // What the header of that name says, "Bearer KEY"; empty: there is none.
    std::string_view authorization;
    // Of the certificate that the connection has shown, verified; empty: none.
    std::string_view subject;
    std::string_view address;
    // What a limit by address counts under; empty: it comes from this machine.
    std::string_view network;
    uint32_t connection = 0;  // Peer's number; 0: it comes by none
  };
  // The audit has a line of each stranger, with the id of a key that stands in front of its secret.
  // Without keys, addresses share the server as tenants would, and connections what is their
  // address's.
  Identity identify(const Visitor& visitor) const;

 private:
  // Of a network that has shown too many wrong tokens a new one is not verified for some time, as
  // the signature of a stranger's costs as much as a good one's.
  static constexpr RateBudget::Rate kWrongTokens = {.at_once = 100, .per_second = 10};

  const std::shared_ptr<Keyring> keys_;
  const std::shared_ptr<RateBudgets> wrong_tokens_ = std::make_shared<RateBudgets>(kWrongTokens);
};

// What the audit says of them.
inline Auditee auditee(const Identity& caller) {
  return {caller.tenant_name, caller.key_id, caller.peer};
}

// Nothing where the caller may do what takes this role at least; else the audit has a line.
Refused check_role(const Identity& caller, Role least);

}  // namespace recurve

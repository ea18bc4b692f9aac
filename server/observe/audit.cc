#include "server/observe/audit.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "server/observe/log.h"
#include "server/observe/rate_budget.h"

namespace recurve {
namespace {

// The lines of one tenant and kind.
struct Account {
  RateBudget budget;
  int64_t unsaid = 0;
};

constexpr RateBudget::Rate kAuditRate = {.at_once = kAuditAtOnce, .per_second = kAuditPerSecond};
// Tenants are those of the keys file, whose names stay; should there be very many, all begin anew.
constexpr size_t kMostAccounts = 10'000;

// How many lines were left out before this one; -1: this one is.
int64_t may_say(std::string_view what, std::string_view tenant) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::string>, Account, std::less<>> accounts;
  std::lock_guard lock(mutex);
  if (accounts.size() >= kMostAccounts) accounts.clear();
  Account& account = accounts[{std::string(what), std::string(tenant)}];
  if (!account.budget.spend(kAuditRate, std::chrono::steady_clock::now())) {
    ++account.unsaid;
    return -1;
  }
  return std::exchange(account.unsaid, 0);
}

}  // namespace

void audit(std::string_view what, const Auditee& who, std::string_view result,
           std::string_view name) {
  try {
    const int64_t unsaid = may_say(what, who.tenant);
    if (unsaid < 0) return;
    log_event(LogLevel::kInfo, "audit",
              {{"what", what},
               {"tenant", who.tenant},
               {"key_id", who.key_id},
               {"peer", who.peer},
               {"result", result},
               {"name", name},
               {"unsaid", unsaid}});
  } catch (const std::bad_alloc&) {  // what cannot be counted is not said
  }
}

}  // namespace recurve

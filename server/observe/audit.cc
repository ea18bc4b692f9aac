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
  int64_t omitted = 0;
};

constexpr RateBudget::Rate kAuditRate = {.at_once = kAuditAtOnce, .per_second = kAuditPerSecond};
// Tenants are those of the keys file; if there are very many, all accounts are reset.
constexpr size_t kMostAccounts = 10'000;

// The number of lines omitted before this one; -1: omit this one.
int64_t omitted_before(std::string_view what, std::string_view tenant) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::string>, Account, std::less<>> accounts;
  std::lock_guard lock(mutex);
  if (accounts.size() >= kMostAccounts) accounts.clear();
  Account& account = accounts[{std::string(what), std::string(tenant)}];
  if (!account.budget.spend(kAuditRate, std::chrono::steady_clock::now())) {
    ++account.omitted;
    return -1;
  }
  return std::exchange(account.omitted, 0);
}

}  // namespace

void audit(std::string_view what, const Auditee& who, std::string_view result,
           std::string_view name) {
  try {
    const int64_t omitted = omitted_before(what, who.tenant);
    if (omitted < 0) return;
    log_event(LogLevel::kInfo, "audit",
              {{"what", what},
               {"tenant", who.tenant},
               {"key_id", who.key_id},
               {"peer", who.peer},
               {"result", result},
               {"name", name},
               {"unsaid", omitted}});
  } catch (const std::bad_alloc&) {  // without memory there is no line
  }
}

}  // namespace recurve

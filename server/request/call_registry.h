#pragma once
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>

#include "server/identity/identity.h"
#include "server/request/clock.h"

namespace recurve {

// The active calls: for aborts by request id, and for threads that wait for the end of all calls.
// Thread-safe.
class CallRegistry {
 public:
  // kModelEnds: calls of a model that ServedModel::end() has ended let go of it; others go on.
  enum class Reason { kAbort, kShutdown, kModelEnds };
  class Call {
   public:
    // Under the registry's lock: may only post.
    virtual void abort(Reason reason) = 0;

   protected:
    ~Call() = default;
  };

  // A call enters at its beginning, leaves when it takes no more aborts, and is gone at its end. A
  // call that is refused at once is counted with refused() instead of entering.
  void enter(Call* call);
  void refused();
  void leave(Call* call);
  void gone(bool was_refused);
  int count() const;  // entered and not gone
  // False on timeout. The first waits until there is no call, the second until there are only
  // refused ones, as new ones of those may always arrive.
  bool wait_until_empty(Clock::time_point until) const;
  bool wait_until_all_served(Clock::time_point until) const;
  // Sets an earlier timeout of wait_until_all_served(), also if it is waiting already.
  void end_by(Clock::time_point deadline);

  // Registers the id of a call until forget(). False if another call of the tenant has it.
  bool name(TenantId tenant, const std::string& id, Call* call);
  // Nothing happens if the call does not have that id.
  void forget(TenantId tenant, const std::string& id, const Call* call);

  bool abort(TenantId tenant, const std::string& id);  // false if there is no such call
  // The same for all tenants.
  bool abort_of_any(const std::string& id);
  void abort_all(Reason reason);

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  int count_ = 0, refused_ = 0;
  Clock::time_point end_by_ = Clock::time_point::max();
  std::unordered_set<Call*> calls_;
  std::map<std::pair<TenantId, std::string>, Call*> by_id_;
};

}  // namespace recurve

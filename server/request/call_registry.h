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

// Calls under way: for an abort by the request's id, and for threads that wait for their end.
// Thread-safe.
class CallRegistry {
 public:
  enum class Reason { kAbort, kShutdown };
  class Call {
   public:
    // Under the registry's lock: may only post.
    virtual void abort(Reason reason) = 0;

   protected:
    ~Call() = default;
  };

  // From the beginning of a call to where it takes no more aborts, and on to its very end. Of one
  // that is refused as it comes only the status is under way.
  void enter(Call* call);
  void refused();
  void leave(Call* call);
  void gone(bool was_refused);
  int count() const;  // entered and not gone
  // False if it is not so by then: that no call is left, or none but refused ones, of which there
  // may be new ones all the time.
  bool wait_until_empty(Clock::time_point until) const;
  bool wait_until_all_served(Clock::time_point until) const;
  // Brings the end of wait_until_all_served() forward, also of one that waits already.
  void end_by(Clock::time_point deadline);

  // Gives the call a name, which it has until forget(). False if another call of the tenant has it.
  bool name(TenantId tenant, const std::string& id, Call* call);
  void forget(TenantId tenant, const std::string& id);

  bool abort(TenantId tenant, const std::string& id);  // false if there is no such call
  // The same of whatever tenant's.
  bool abort_of_any(const std::string& id);
  void abort_all();

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  int count_ = 0, refused_ = 0;
  Clock::time_point end_by_ = Clock::time_point::max();
  std::unordered_set<Call*> calls_;
  std::map<std::pair<TenantId, std::string>, Call*> by_id_;
};

}  // namespace recurve

#pragma once
#include <stdexcept>
#include <string>

#include "server/request/end_reason.h"

namespace recurve {

// Why a written state cannot be used: kForeignState, kOtherModel or kStateLost.
class StateError : public std::runtime_error {
 public:
  StateError(EndReason reason, const std::string& what)
      : std::runtime_error(what), reason_(reason) {}
  EndReason reason() const { return reason_; }

 private:
  EndReason reason_;
};

}  // namespace recurve

#pragma once
#include <string_view>

namespace recurve {

// Who did something, for the audit: of a stranger what is known of it. Never a key, nor its hash.
struct Auditee {
  std::string_view tenant, key_id, peer;
};

// A line of the log, event=audit, for what an operator may have to account for:
//
//   event=audit what=session_open tenant=alice key_id=0123456789ab peer=192.0.2.1 result=OK name=a
//
//   what           authentication, authorisation, limit, drain, abort_of_other, session_open,
//                  session_fork, session_close, session_import, session_export, session_expired
//   result         OK, a gRPC code, or why
//   name           of what it was done to, or of the limit; empty: none
//
// Of what one tenant does of a kind a line each for the first kAuditAtOnce, and then
// kAuditPerSecond; `unsaid` counts those that had none. Thread-safe; never throws.
inline constexpr double kAuditAtOnce = 100, kAuditPerSecond = 2;
void audit(std::string_view what, const Auditee& who, std::string_view result,
           std::string_view name = {});

}  // namespace recurve

#pragma once
#include <string_view>

namespace recurve {

// The caller, for the audit log: of an unauthenticated one what is known. Never a key or its hash.
struct Auditee {
  std::string_view tenant, key_id, peer;
};

// Logs an event=audit line, for actions that an operator may have to account for:
//
//   event=audit what=session_open tenant=alice key_id=0123456789ab peer=192.0.2.1 result=OK name=a
//
//   what           authentication, authorisation, limit, drain, abort_of_other, model_load,
//                  model_unload, session_open, session_fork, session_close, session_import,
//                  session_export, session_expired
//   result         OK, a gRPC code, or a reason
//   name           of the object, or of the limit; empty: none
//
// Per tenant and kind, at most kAuditAtOnce lines at once and kAuditPerSecond on average; `unsaid`
// is the number of lines omitted since the last one. Thread-safe; never throws.
inline constexpr double kAuditAtOnce = 100, kAuditPerSecond = 2;
void audit(std::string_view what, const Auditee& who, std::string_view result,
           std::string_view name = {});

}  // namespace recurve

#include "clients/cpp/exit_code.h"

namespace recurve {

ExitCode exit_code(const ClientError& error) {
  switch (error.kind()) {
    case ClientError::Kind::kUnreachable:
      return kExitUnreachable;
    case ClientError::Kind::kUnavailable:
      return kExitUnavailable;
    default:
      return kExitFailed;
  }
}

}  // namespace recurve

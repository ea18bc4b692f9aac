#pragma once
#include "clients/cpp/client_error.h"

namespace recurve {

// Exit codes of the programs of this folder and of loadgen/; also in their --help.
enum ExitCode {
  kExitOk = 0,
  kExitFailed = 1,
  kExitUsage = 2,
  kExitUnreachable = 3,
  kExitUnavailable = 4,
  kExitInterrupted = 130,
};

// Of a call that failed.
ExitCode exit_code(const ClientError& error);

}  // namespace recurve

// Serves a model that computes nothing, each step of which takes a given time, until SIGTERM:
//   null_server TOKENIZER SLOTS STEP_MS
// Prints the ports of gRPC and HTTP.
#include "tests/support/null_server.h"

#include <fmt/format.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "server/observe/log.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "null_server TOKENIZER SLOTS STEP_MS\n");
    return 2;
  }
  recurve::init_logging(recurve::LogLevel::kWarning, recurve::LogFormat::kText);
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigprocmask(SIG_BLOCK, &ends, nullptr);  // for all threads
  const std::chrono::duration<double, std::milli> step(std::atof(argv[3]));
  recurve::testing::NullServer server(
      {.tokenizer = argv[1],
       .slots = std::atoi(argv[2]),
       .step = std::chrono::duration_cast<recurve::testing::PacedModel::Clock::duration>(step)});
  fmt::print("{} {}\n", server.rpc().port(), server.http_port());
  std::fflush(stdout);
  int signal = 0;
  sigwait(&ends, &signal);
  return 0;
}

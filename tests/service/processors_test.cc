// The number of threads on a host with more processors than the server may use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/generate_outcome.h"
#include "tests/support/server_process.h"

namespace recurve::testing::processors_test {

// After an answer with a constraint, whose masks have threads too.
int threads_of_a_server() {
  ServerProcess server({"--threads", "1", "--model",
                        std::string(RECURVE_SOURCE_DIR) + "/weights_tools/demo/xlstm-books"});
  Client client(server.address());
  v1::GenerateRequest request = generate_request("It was", 4);
  request.mutable_stop()->set_ignore_eos(false);
  request.mutable_constraint()->set_regex("[a-z ]+");
  client.generate(request, [](const v1::GenerateResponse&) {});
  const int threads = server.threads();
  EXPECT_EQ(server.stop(), 0);
  return threads;
}

TEST(Processors, NotAllowedForAServerHaveNoThreads) {
  const int usual = threads_of_a_server();
  setenv("LD_PRELOAD", RECURVE_MANY_PROCESSORS_LIBRARY, 1);
  const int of_large_host = threads_of_a_server();
  unsetenv("LD_PRELOAD");
  constexpr int kComeAndGo = 2;  // gRPC's threads, of a small pool
  EXPECT_LE(of_large_host, usual + kComeAndGo);
}

}  // namespace recurve::testing::processors_test

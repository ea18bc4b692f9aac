// More sessions than fit memory, under a limit that the server does not know.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <map>

#include "tests/support/generate_outcome.h"
#include "tests/support/server_process.h"

namespace recurve::testing::session_memory_test {

using grpc::StatusCode;
using ::testing::HasSubstr;

const std::string kModel = std::string(RECURVE_SOURCE_DIR) + "/weights_tools/demo/xlstm-books";
constexpr int kForks = 16'100;    // 4.1 GB of states
constexpr int kRefusals = 2'000;  // enough to show a leak

// For processes started while it exists.
class Limit {
 public:
  Limit(__rlimit_resource resource, rlim_t bytes) : resource_(resource) {
    getrlimit(resource_, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    setrlimit(resource_, &limit);
  }
  ~Limit() { setrlimit(resource_, &before_); }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

 private:
  const __rlimit_resource resource_;
  rlimit before_{};
};

class UnderALimitFault : public ::testing::TestWithParam<__rlimit_resource> {
 protected:
  UnderALimitFault() {
    const Limit limit(GetParam(), 1'500'000'000);
    server_.emplace(std::vector<std::string>{"--model", kModel});
    address_ = server_->address();
    sessions_ = v1::Sessions::NewStub(own_channel(address_));
  }

  grpc::Status fork(const std::string& name) {
    v1::ForkSessionRequest request;
    request.set_name("s");
    request.set_new_name(name);
    grpc::ClientContext context;
    v1::Session session;
    return sessions_->Fork(&context, request, &session);
  }
  static void turn(Client& client, const std::string& session) {
    v1::GenerateRequest request = generate_request("It was a cold evening", 4);
    request.set_session(session);
    client.generate(request, [](const auto&) {});
  }

  std::optional<ServerProcess> server_;
  std::string address_;
  std::unique_ptr<v1::Sessions::Stub> sessions_;
};

TEST_P(UnderALimitFault, AFloodOfForksIsRefusedByNameAndItsMemoryFreed) {
  Client client(address_);
  v1::OpenSessionRequest open;
  open.set_name("s");
  client.open_session(open);
  turn(client, "s");
  const double before = server_->resident_bytes();
  int made = 0, refused = 0;
  std::map<StatusCode, std::string> messages;
  for (int i = 0; i < kForks && refused < kRefusals; ++i) {
    const grpc::Status status = fork(fmt::format("f{}", i));
    ++(status.ok() ? made : refused);
    if (!status.ok()) messages[status.error_code()] = status.error_message();
  }
  const double most = server_->resident_bytes();
  fmt::print("{} forks made, {} refused; resident {:.0f} MB before, {:.0f} MB then\n", made,
             refused, before / 1e6, most / 1e6);
  EXPECT_GT(made, 500);
  EXPECT_GT(refused, 0);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_THAT(messages[StatusCode::RESOURCE_EXHAUSTED], HasSubstr("--session-memory"));
  // Sessions continue, wherever their state is, and requests without a session are served too.
  for (int i = 0; i < made; i += made / 20) EXPECT_NO_THROW(turn(client, fmt::format("f{}", i)));
  EXPECT_NO_THROW(client.generate(generate_request("It was", 4), [](const auto&) {}));
  for (int i = 0; i < made; ++i) client.close_session(fmt::format("f{}", i));
  EXPECT_TRUE(comes_true([&] { return server_->resident_bytes() <= 1.5 * before; },
                         std::chrono::seconds(30)))
      << server_->resident_bytes() / 1e6 << " MB";
  fmt::print("{:.0f} MB resident after\n", server_->resident_bytes() / 1e6);
  EXPECT_EQ(server_->stop(), 0) << server_->log();
}

INSTANTIATE_TEST_SUITE_P(Limits, UnderALimitFault, ::testing::Values(RLIMIT_AS, RLIMIT_DATA));

}  // namespace recurve::testing::session_memory_test

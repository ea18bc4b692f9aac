// Memory and connections that a client can make the server use before a call starts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "server/rpc/messages.h"
#include "tests/support/rpc_fixture.h"
#include "tests/support/temp_dir.h"

namespace recurve::rpc_connections_test {

using ::testing::HasSubstr;
using ::testing::Not;

class RpcConnectionsTest : public RpcFixture {};

TEST_F(RpcConnectionsTest, ACompressedMessageIsAcceptedOnlyIfAllowed) {
  for (const bool allowed : {false, true}) {
    start({}, {.rpc = {.request_compression = allowed}});
    grpc::ClientContext context;
    context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
    const Generated answer = generate(text_request(std::string(10'000, 'a')), &context);
    EXPECT_EQ(answer.status.ok(), allowed) << answer.status.error_message();
    if (!allowed) {
      EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
      EXPECT_THAT(answer.status.error_message(), HasSubstr("gzip"));
    }
    TearDown();
  }
}

TEST_F(RpcConnectionsTest, ReflectionCanBeOff) {
  for (const bool on : {true, false}) {
    start({}, {.rpc = {.reflection = on}});
    const auto answer = raw_call(
        *channel_, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "\x3a\x01*");
    EXPECT_EQ(answer.status.error_code() == grpc::StatusCode::UNIMPLEMENTED, !on);
    TearDown();
  }
}

TEST_F(RpcConnectionsTest, AMessageSizeThatGrpcCannotCountIsRefused) {
  try {
    ServerCore core({}, {std::make_shared<ServedModel>(1)}, metrics_);
    RpcServer server({.listen = "127.0.0.1:0", .max_message_bytes = int64_t{1} << 31}, core);
    FAIL() << "takes 2 GiB";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("max_message_bytes"));
    EXPECT_THAT(error.what(), HasSubstr("2147483648"));
  }
}

TEST_F(RpcConnectionsTest, AConnectionOverTheLimitPerAddressIsClosed) {
  start({}, {.rpc = {.max_connections_by_address = 2}});
  EXPECT_TRUE(generate(text_request("x")).status.ok());
  const auto second = connect(), third = connect();
  const auto end = [] { return std::chrono::system_clock::now() + std::chrono::seconds(20); };
  ASSERT_TRUE(second->WaitForConnected(end()));
  third->GetState(/*try_to_connect=*/true);
  EXPECT_TRUE(eventually([&] {
    return metrics_.text().find("{reason=\"too_many_of_address\"} 0") == std::string::npos;
  }));
  EXPECT_TRUE(generate(text_request("x")).status.ok());
}

TEST_F(RpcConnectionsTest, AUnixSocketIsServedWithinTheLimits) {
  const TempDir folder;
  const std::string address = "unix:" + (folder / "socket").string();
  AdmissionQueue queue(8);
  ServerCore core({}, {std::make_shared<ServedModel>(1)}, metrics_);
  RpcServer server({.listen = address, .max_connections_by_address = 2}, core);
  EXPECT_EQ(server.port(), 0);
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < 3; ++i) {
    grpc::ChannelArguments apart;  // a separate connection each
    apart.SetInt("number", i);
    channels.push_back(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), apart));
    grpc::ClientContext context;
    v1::ServerInfo info;
    const auto control = v1::Control::NewStub(channels.back());
    EXPECT_EQ(control->GetServerInfo(&context, {}, &info).ok(), i < 2) << i;
  }
  EXPECT_THAT(metrics_.text(), HasSubstr("refused_total{reason=\"too_many_of_address\"}"));
  EXPECT_THAT(metrics_.text(), Not(HasSubstr("refused_total{reason=\"too_many_of_address\"} 0")));
}

TEST(LeadingStringTest, IsFoundWithoutTheRest) {
  const auto find = [](const std::string& bytes) {
    return leading_string(to_buffer(bytes), 1, kMaxNameLength);
  };
  EXPECT_EQ(find("\x0a\x02id\x12\x7f"), "id");  // whatever follows
  EXPECT_EQ(find("\x12\x02id"), "");
  EXPECT_EQ(find(std::string("\x0a\x7f") + "short"), "");
  EXPECT_EQ(find(std::string("\x0a\x81\x01") + std::string(129, 'x')), "");
  EXPECT_EQ(find(""), "");
}

}  // namespace recurve::rpc_connections_test

// The server must serve regardless of where its standard error goes.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <optional>

#include "tests/support/generate_outcome.h"
#include "tests/support/server_process.h"

namespace recurve::testing::stderr_test {

using std::chrono::seconds;
using ::testing::HasSubstr;

const std::string kModel = std::string(RECURVE_SOURCE_DIR) + "/weights_tools/demo/xlstm-books";

// A pipe with the capacity of a page, which a few lines fill.
struct Pipe {
  Pipe() {
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    fcntl(ends[1], F_SETPIPE_SZ, 4096);
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  void close_end(int end) {
    if (ends[end] >= 0) close(ends[end]);
    ends[end] = -1;
  }
  int ends[2];
};

// A server on a Unix socket, since no log has its port.
class StderrTest : public ::testing::Test {
 protected:
  void start(int standard_error) {
    server_.emplace(std::vector<std::string>{"--model", kModel, "--slots", "2"}, address_,
                    standard_error);
    client_.emplace(address_);
    client_->wait_until_serving(std::chrono::system_clock::now() + seconds(30));
  }
  // Each logs a line.
  void ask(int count) {
    const CallOptions options{.timeout = seconds(20)};
    for (int i = 0; i < count; ++i) {
      client_->generate(generate_request("It was", 1), [](const auto&) {}, options);
    }
  }
  int stop() {
    server_->signal(SIGTERM);
    return server_->wait_for(seconds(20));
  }
  void TearDown() override { std::filesystem::remove(socket_); }

  const std::string socket_ = fmt::format("{}/recurve-stderr-{}", ::testing::TempDir(), getpid());
  const std::string address_ = "unix:" + socket_;
  std::optional<ServerProcess> server_;
  std::optional<Client> client_;
};

TEST_F(StderrTest, APipeThatIsNotRead) {
  Pipe pipe;
  start(pipe.ends[1]);
  ask(300);
  EXPECT_EQ(stop(), 0) << "and it does not delay the exit";
}

TEST_F(StderrTest, APipeWhoseReaderCloses) {
  Pipe pipe;
  start(pipe.ends[1]);
  pipe.close_end(0);
  ask(5);
  EXPECT_EQ(stop(), 0);
}

TEST_F(StderrTest, APipeWithoutAReaderAtTheStart) {
  Pipe pipe;
  pipe.close_end(0);
  start(pipe.ends[1]);
  ask(5);
  EXPECT_EQ(stop(), 0);
}

TEST_F(StderrTest, AFullDisk) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  start(full);
  ask(5);
  EXPECT_EQ(stop(), 0);
  close(full);
}

TEST_F(StderrTest, NoStandardError) {
  start(ServerProcess::kClosed);
  ask(5);
  EXPECT_EQ(stop(), 0);
}

// A refusal to start is an exit status even if its message cannot be written.
TEST_F(StderrTest, ARefusalThatIsNotRead) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ServerProcess server({"--model", "/nowhere"}, address_, full);
  EXPECT_EQ(server.wait_for(seconds(20)), 1);
  close(full);
}

// gRPC's messages go to the log, and gRPC's threads do not wait for a reader.
TEST_F(StderrTest, MessagesOfGrpcAreLinesOfTheLog) {
  setenv("GRPC_VERBOSITY", "debug", 1);
  setenv("GRPC_TRACE", "http", 1);
  ServerProcess server({"--model", kModel, "--slots", "2", "--log-level", "debug"});
  unsetenv("GRPC_VERBOSITY");
  unsetenv("GRPC_TRACE");
  Client(server.address()).load();
  EXPECT_EQ(server.stop(), 0);
  EXPECT_THAT(server.log(), HasSubstr("event=library_message library=grpc"));
}

}  // namespace recurve::testing::stderr_test

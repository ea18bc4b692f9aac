// Faults of clients and networks: afterwards the server is as before.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/support/amount.h"
#include "tests/support/generate_outcome.h"
#include "tests/support/server_process.h"

namespace recurve::testing::faults_test {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AnyOf;
using ::testing::Eq;

const std::string kModel = std::string(RECURVE_SOURCE_DIR) + "/weights_tools/demo/xlstm-books";
constexpr int kSlots = 4;

uint16_t port_of(const std::string& address) {
  return static_cast<uint16_t>(std::stoi(address.substr(address.find(':') + 1)));
}

// All tests use one server: each must leave it unchanged.
class FaultTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ =
        new ServerProcess({"--model", kModel, "--slots", std::to_string(kSlots), "--max-queue",
                           "64", "--ttft-ms", "0", "--stall-seconds", kSanitized ? "3" : "1"});
    address_ = new std::string(server_->address());
    Client client(*address_);
    ask(client);
    files_ = server_->open_files();
  }
  static void TearDownTestSuite() {
    EXPECT_EQ(server_->stop(), 0) << server_->log();
    delete server_;
    delete address_;
  }
  void SetUp() override {
    client_ = std::make_unique<Client>(*address_);
    expected_ = ask(*client_);
  }
  // Slots, queue, file handles and answers are as at the start.
  void TearDown() override {
    EXPECT_TRUE(comes_true([&] { return is_idle(*client_); })) << client_->load().DebugString();
    EXPECT_EQ(ask(*client_), expected_);
    EXPECT_TRUE(comes_true([&] { return server_->open_files() <= files_ + 1; }))
        << server_->open_files() << " open files, " << files_ << " at first";
  }

  static std::vector<int32_t> ask(Client& client) {
    std::vector<int32_t> ids;
    client.generate(generate_request("The road", 20), [&](const v1::GenerateResponse& response) {
      for (const int32_t id : response.chunk().ids()) ids.push_back(id);
    });
    return ids;
  }
  // Calls `one(i)` for each i below `count` from so many threads.
  static void in_threads(int threads, int count, const std::function<void(int)>& one) {
    std::atomic<int> next = 0;
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t) {
      all.emplace_back([&] {
        for (int i = next++; i < count; i = next++) one(i);
      });
    }
    for (std::thread& thread : all) thread.join();
  }

  static ServerProcess* server_;
  static std::string* address_;
  static int files_;
  std::unique_ptr<Client> client_;
  std::vector<int32_t> expected_;
};
ServerProcess* FaultTest::server_ = nullptr;
std::string* FaultTest::address_ = nullptr;
int FaultTest::files_ = 0;

// An endless `recurve generate` in another process.
pid_t spawn_endless_client(const std::string& address) {
  const std::string self =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "recurve";
  std::vector<std::string> args = {self,     "--server",     address,        "generate", "--prompt",
                                   "It was", "--ignore-eos", "--max-tokens", "1000000"};
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t quiet;
  posix_spawn_file_actions_init(&quiet);
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    posix_spawn_file_actions_addopen(&quiet, fd, "/dev/null", O_WRONLY, 0);
  }
  pid_t pid = 0;
  EXPECT_EQ(posix_spawn(&pid, self.c_str(), &quiet, nullptr, argv.data(), environ), 0);
  posix_spawn_file_actions_destroy(&quiet);
  return pid;
}

TEST_F(FaultTest, ClientsThatAreKilled) {
  std::vector<pid_t> clients;
  for (int i = 0; i < 2 * kSlots; ++i) clients.push_back(spawn_endless_client(*address_));
  EXPECT_TRUE(comes_true([&] {
    const v1::Load load = client_->load();
    return load.requests_running() == kSlots && load.requests_waiting() == kSlots;
  })) << client_->load().DebugString();
  for (const pid_t pid : clients) kill(pid, SIGKILL);
  for (const pid_t pid : clients) waitpid(pid, nullptr, 0);
}

// They use every slot, read nothing and stay connected: after a while the server ends them.
TEST_F(FaultTest, ReadersThatStall) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // a fixed window of 64 KiB
  struct Stalled {
    std::unique_ptr<v1::Inference::Stub> stub;  // of a separate connection
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
  };
  std::vector<Stalled> stalled(kSlots);
  for (Stalled& one : stalled) {
    v1::GenerateRequest request = generate_request("It was", 1000000);
    request.set_logprobs(20);
    one.stub = v1::Inference::NewStub(own_channel(*address_, arguments));
    one.reader = one.stub->Generate(&one.context, request);
  }
  ASSERT_TRUE(comes_true([&] { return client_->load().requests_running() == kSlots; }));
  EXPECT_EQ(ask(*client_), expected_) << "after a slot was freed";
  // A stream that is read before that would continue.
  ASSERT_TRUE(comes_true([&] { return is_idle(*client_); })) << "all of them must end";
  for (Stalled& one : stalled) {
    v1::GenerateResponse response;
    int finals = 0;
    while (one.reader->Read(&response)) finals += response.has_final();
    EXPECT_EQ(finals, 0);
    EXPECT_THAT(one.reader->Finish().error_code(),
                AnyOf(Eq(StatusCode::CANCELLED), Eq(StatusCode::DEADLINE_EXCEEDED)));
  }
}

// A slow reader is not a stalled one: it gets all tokens at its speed, and does not delay others.
TEST_F(FaultTest, AReaderThatIsSlow) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto stub = v1::Inference::NewStub(own_channel(*address_, arguments));
  constexpr size_t kTokens = 1500, kShortOnes = 10;
  v1::GenerateRequest request = generate_request("It was", kTokens);
  request.set_logprobs(20);
  grpc::ClientContext context;
  std::atomic<bool> slow_ended = false;
  std::thread slow([&] {
    const Outcome outcome = generate(*stub, request, context, [&](const auto&) {
      std::this_thread::sleep_for(milliseconds(5));
    });
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_TRUE(outcome.proper());
    EXPECT_EQ(outcome.ids.size(), kTokens);
    slow_ended = true;
  });
  size_t answers = 0;
  for (; !slow_ended && answers < kShortOnes; ++answers) EXPECT_EQ(ask(*client_), expected_);
  EXPECT_EQ(answers, kShortOnes) << "the slow one was faster than so many short ones";
  slow.join();
}

// ---- raw connections

std::string frame(char type, char flags, uint32_t stream, const std::string& payload) {
  std::string bytes;
  const auto size = static_cast<uint32_t>(payload.size());
  for (const int shift : {16, 8, 0}) bytes.push_back(static_cast<char>(size >> shift));
  bytes.push_back(type);
  bytes.push_back(flags);
  for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<char>(stream >> shift));
  return bytes + payload;
}

// A literal header field, never indexed; lengths below 127.
std::string header(const std::string& name, const std::string& value) {
  return std::string(1, '\x10') + static_cast<char>(name.size()) + name +
         static_cast<char>(value.size()) + value;
}

// The start of a Generate call: preface, settings, headers, the length of a message of a megabyte
// and its first bytes.
std::string cut_message() {
  const std::string headers = header(":method", "POST") + header(":scheme", "http") +
                              header(":path", "/recurve.v1.Inference/Generate") +
                              header(":authority", "x") + header("te", "trailers") +
                              header("content-type", "application/grpc");
  constexpr char kSettings = 4, kHeaders = 1, kData = 0, kEndHeaders = 4;
  return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(kSettings, 0, 0, "") +
         frame(kHeaders, kEndHeaders, 1, headers) +
         frame(kData, 0, 1, std::string("\0\0\x10\0\0", 5) + std::string(10000, 'x'));
}

int connect_to(const std::string& address) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port_of(address));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  return fd;
}

TEST_F(FaultTest, ConnectionsCutAnywhere) {
  const std::string whole = cut_message();
  std::mt19937 random(1);
  for (int i = 0; i < 400; ++i) {
    const int fd = connect_to(*address_);
    const size_t size = std::uniform_int_distribution<size_t>(1, whole.size())(random);
    EXPECT_GT(send(fd, whole.data(), size, MSG_NOSIGNAL), 0);
    if (i % 2 == 0) {  // with a reset
      const linger at_once{.l_onoff = 1, .l_linger = 0};
      setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    }
    close(fd);
  }
}

TEST_F(FaultTest, BytesOfNoProtocol) {
  std::mt19937 random(2);
  const std::string preface = cut_message();
  for (int i = 0; i < 200; ++i) {
    const int fd = connect_to(*address_);
    std::string bytes = i % 2 == 0 ? std::string() : preface;
    for (int b = 0; b < 300; ++b) bytes.push_back(static_cast<char>(random()));
    EXPECT_GT(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
    close(fd);
  }
}

// ---- storms

TEST_F(FaultTest, AStormOfDeadlines) {
  const auto stub = v1::Inference::NewStub(own_channel(*address_));
  std::atomic<int> improper = 0, late = 0, ok = 0;
  in_threads(24, 300, [&](int i) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + milliseconds(1 + i % 60));
    const Outcome outcome = generate(*stub, generate_request("It was", 1 + i % 50), context);
    const StatusCode code = outcome.status.error_code();
    EXPECT_THAT(code, AnyOf(Eq(StatusCode::OK), Eq(StatusCode::DEADLINE_EXCEEDED),
                            Eq(StatusCode::RESOURCE_EXHAUSTED)))
        << outcome.status.error_message();
    improper += !outcome.proper() && code != StatusCode::DEADLINE_EXCEEDED;
    late += code == StatusCode::DEADLINE_EXCEEDED, ok += code == StatusCode::OK;
  });
  EXPECT_EQ(improper, 0);
  EXPECT_GT(late, 0);
}

TEST_F(FaultTest, AStormOfAborts) {
  const auto stub = v1::Inference::NewStub(own_channel(*address_));
  constexpr int kRequests = 150;
  std::atomic<int> aborted = 0;
  std::atomic<bool> over = false;
  std::vector<std::thread> aborters;
  for (uint32_t seed = 0; seed < 2; ++seed) {
    aborters.emplace_back([&, seed] {
      Client client(*address_);
      std::mt19937 random(seed);
      while (!over) {
        try {
          client.abort("storm-" + std::to_string(random() % kRequests));
        } catch (const ClientError& error) {
          EXPECT_EQ(error.code(), StatusCode::NOT_FOUND) << error.what();
        }
      }
    });
  }
  in_threads(16, kRequests, [&](int i) {
    grpc::ClientContext context;
    v1::GenerateRequest request = generate_request("It was", 300);
    request.set_request_id("storm-" + std::to_string(i));
    const Outcome outcome = generate(*stub, request, context);
    EXPECT_THAT(outcome.status.error_code(), AnyOf(Eq(StatusCode::OK), Eq(StatusCode::CANCELLED)));
    EXPECT_TRUE(outcome.proper());
    aborted += outcome.status.error_code() == StatusCode::CANCELLED;
  });
  over = true;
  for (std::thread& aborter : aborters) aborter.join();
  EXPECT_GT(aborted, 0);
}

TEST_F(FaultTest, AFloodBeyondTheQueueIsRefusedAndTheRestServed) {
  constexpr int kRequests = 250;
  std::atomic<int> refused = 0, ok = 0;
  in_threads(96, kRequests, [&](int i) {
    thread_local const auto stub = v1::Inference::NewStub(own_channel(*address_));
    grpc::ClientContext context;
    const Outcome outcome = generate(*stub, generate_request("It was", 60, i), context);
    EXPECT_TRUE(outcome.proper());
    refused += outcome.status.error_code() == StatusCode::RESOURCE_EXHAUSTED;
    ok += outcome.status.ok();
  });
  EXPECT_EQ(refused + ok, kRequests);
  EXPECT_GE(ok, 64) << "no request is refused while fewer wait";
  EXPECT_GT(refused, 0);
}

// ---- the server ends

// Streams without a pause from 16 threads until told to end; counts how they ended.
class Crowd {
 public:
  explicit Crowd(const std::string& address) {
    for (int t = 0; t < 16; ++t) {
      threads_.emplace_back([this, address, t] {
        const auto stub = v1::Inference::NewStub(own_channel(address));
        while (!leaving_) {
          grpc::ClientContext context;
          context.set_deadline(std::chrono::system_clock::now() + seconds(60));
          const Outcome outcome = generate(*stub, generate_request("It was", 40, t), context);
          const StatusCode code = outcome.status.error_code();
          EXPECT_TRUE(outcome.proper());
          // gRPC cancels calls that arrive while the port closes.
          EXPECT_TRUE(code == StatusCode::OK || code == StatusCode::UNAVAILABLE ||
                      (code == StatusCode::CANCELLED && outcome.ids.empty()))
              << outcome.status.error_code() << " " << outcome.status.error_message();
          ++(outcome.status.ok() ? ok_ : unavailable_);
          if (!outcome.status.ok()) std::this_thread::sleep_for(milliseconds(20));
        }
      });
    }
  }
  ~Crowd() { leave(); }
  void leave() {
    leaving_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  int ok() const { return ok_; }
  int unavailable() const { return unavailable_; }

 private:
  std::atomic<bool> leaving_ = false;
  std::atomic<int> ok_ = 0, unavailable_ = 0;
  std::vector<std::thread> threads_;
};

const std::vector<std::string> kFlags = {"--model", kModel, "--slots", "8", "--ttft-ms", "0"};

TEST(ServerFaultTest, DrainUnderLoadFinishesRunningRequests) {
  ServerProcess server(kFlags);
  Crowd crowd(server.address());
  ASSERT_TRUE(comes_true([&] { return crowd.ok() > 30; }));
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0) << server.log();
  EXPECT_THAT(server.log(), ::testing::HasSubstr("all_requests_ended=true"));
  crowd.leave();
  EXPECT_GT(crowd.unavailable(), 0);
}

TEST(ServerFaultTest, ClientsNoticeARestartAtOnce) {
  std::optional<ServerProcess> server(kFlags);
  const std::string address = server->address();
  Crowd crowd(address);
  ASSERT_TRUE(comes_true([&] { return crowd.ok() > 30; }));
  server->signal(SIGKILL);
  server->wait();
  EXPECT_TRUE(comes_true([&] { return crowd.unavailable() >= 16; }, seconds(10)));
  server.emplace(kFlags, address);
  const int before = crowd.ok();
  EXPECT_TRUE(comes_true([&] { return crowd.ok() > before + 30; }));
  crowd.leave();
  Client client(address);
  EXPECT_TRUE(comes_true([&] { return is_idle(client); }));
}

}  // namespace recurve::testing::faults_test

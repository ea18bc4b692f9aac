// The server at 80 % of its capacity, for RECURVE_SOAK_SECONDS (tests/soak.sh), with requests of
// all kinds, sessions, and clients that cancel and stall: afterwards slots, sessions, memory and
// file handles are as at the start.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>

#include "tests/support/amount.h"
#include "tests/support/generate_outcome.h"
#include "tests/support/server_process.h"

namespace recurve::testing::soak_test {

using Clock = std::chrono::steady_clock;
using grpc::StatusCode;

const std::string kModel = std::string(RECURVE_SOURCE_DIR) + "/weights_tools/demo/xlstm-books";
constexpr int kSlots = 16, kWorkers = 64;

double soak_seconds() {
  const char* set = std::getenv("RECURVE_SOAK_SECONDS");
  return set == nullptr ? 5 : std::atof(set);
}

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

// A random action of a client; returns what went wrong.
class Visitor {
 public:
  Visitor(const std::string& address, uint32_t seed)
      : client_(address), stub_(v1::Inference::NewStub(own_channel(address))), random_(seed) {}

  void visit() {
    const int what = between(0, 19);
    if (what < 12) {
      plain();
    } else if (what < 15) {
      session();
    } else if (what < 17) {
      leave();
    } else if (what < 18) {
      choices();
    } else if (what < 19) {
      deadline();
    } else {
      score();
    }
  }

 private:
  void plain() { expect(request(), {StatusCode::OK}); }

  void choices() {
    v1::GenerateRequest several = request();
    several.set_n(3);
    expect(several, {StatusCode::OK});
  }

  void session() {
    v1::OpenSessionRequest open;
    open.set_ttl_seconds(600);
    const std::string name = client_.open_session(open).name();
    v1::GenerateRequest turn = request();
    turn.set_session(name);
    expect(turn, {StatusCode::OK});
    client_.mark_session(name, "here");
    v1::ForkSessionRequest fork;
    fork.set_name(name);
    const std::string other = client_.fork_session(fork).name();
    expect(turn, {StatusCode::OK});
    client_.rewind_session(name, "here");
    client_.close_session(other);
    client_.close_session(name);
  }

  void leave() {
    v1::GenerateRequest longer = request();
    longer.mutable_stop()->set_max_tokens(5000);
    grpc::ClientContext context;
    int left = between(1, 20);
    const Outcome outcome = generate(*stub_, longer, context, [&](const auto&) {
      if (--left == 0) context.TryCancel();
    });
    check(outcome, {StatusCode::OK, StatusCode::CANCELLED});
  }

  void deadline() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::milliseconds(between(1, 50)));
    check(generate(*stub_, request(), context), {StatusCode::OK, StatusCode::DEADLINE_EXCEEDED});
  }

  void score() {
    v1::ScoreOptions options;
    const v1::ScoreFinal final = client_.score(
        options, std::string(static_cast<size_t>(between(1, 4000)), 'a'), [](const auto&) {});
    EXPECT_GT(final.text_bytes(), 0);
  }

  v1::GenerateRequest request() {
    std::string text = "It was";
    for (int words = between(0, 150); words > 0; --words) text += " cold and grey";
    return generate_request(text, between(1, 100), static_cast<uint64_t>(between(1, 1 << 30)));
  }
  int between(int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random_);
  }

  void expect(const v1::GenerateRequest& request, const std::vector<StatusCode>& codes) {
    grpc::ClientContext context;
    check(generate(*stub_, request, context), codes);
  }
  // At 80 % a burst may still exceed the capacity.
  static void check(const Outcome& outcome, std::vector<StatusCode> codes) {
    codes.push_back(StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(codes, ::testing::Contains(outcome.status.error_code()))
        << outcome.status.error_message();
    EXPECT_TRUE(outcome.proper() || outcome.status.error_code() == StatusCode::DEADLINE_EXCEEDED ||
                outcome.status.error_code() == StatusCode::CANCELLED);
  }

  Client client_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::mt19937 random_;
};

// Visitors that are started on request, each with a thread and a connection.
class Crowd {
 public:
  explicit Crowd(const std::string& address) {
    for (uint32_t w = 0; w < kWorkers; ++w) {
      threads_.emplace_back([this, address, w] { work(Visitor(address, w)); });
    }
  }
  ~Crowd() {
    {
      std::lock_guard lock(mutex_);
      leaving_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  void send_one() {
    {
      std::lock_guard lock(mutex_);
      ++due_;
      ++sent_;
    }
    changed_.notify_one();
  }
  int64_t done() const { return done_; }
  // Whether every visit has returned.
  bool is_home() const {
    std::lock_guard lock(mutex_);
    return done_ == sent_;
  }

 private:
  void work(Visitor visitor) {
    while (true) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return due_ > 0 || leaving_; });
        if (leaving_) return;
        --due_;
      }
      try {
        visitor.visit();
      } catch (const ClientError& error) {
        EXPECT_EQ(error.code(), StatusCode::RESOURCE_EXHAUSTED) << error.what();
      }
      ++done_;
    }
  }
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int due_ = 0;
  int64_t sent_ = 0;
  bool leaving_ = false;
  std::atomic<int64_t> done_ = 0;
  std::vector<std::thread> threads_;
};

// Visits per second while as many as there are slots always wait; measured over at least as many.
double capacity(Crowd& crowd, double seconds) {
  const Clock::time_point began = Clock::now();
  const int64_t before = crowd.done();
  for (int64_t sent = 0; seconds_since(began) < seconds || crowd.done() - before < kSlots;) {
    for (; sent - (crowd.done() - before) < kSlots; ++sent) crowd.send_one();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return static_cast<double>(crowd.done() - before) / seconds_since(began);
}

// Poisson arrivals at a rate.
void visit_at(Crowd& crowd, double rate, double seconds) {
  std::mt19937 random(1);
  std::exponential_distribution<double> gap(rate);
  const Clock::time_point began = Clock::now();
  for (double next = gap(random); next < seconds; next += gap(random)) {
    std::this_thread::sleep_until(
        began + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(next)));
    crowd.send_one();
  }
}

TEST(SoakTest, ResourcesReturnToTheirStart) {
  const double seconds = soak_seconds();
  ServerProcess server({"--model", kModel, "--slots", std::to_string(kSlots), "--prefix-memory",
                        "8MB", "--ttft-ms", "10000"});  // visits wait, none is refused
  const std::string address = server.address();
  Client client(address);
  client.load();
  const int files = server.open_files();
  double rate, memory;
  {
    Crowd crowd(address);
    rate = 0.8 * capacity(crowd, std::min(5.0, seconds / 4));
    // The first part fills caches: threads' heaps, connections, buffers of the batch.
    visit_at(crowd, rate, seconds / 4);
    memory = server.resident_bytes();
    visit_at(crowd, rate, seconds * 3 / 4);
    EXPECT_TRUE(
        comes_true([&] { return crowd.is_home() && is_idle(client); }, std::chrono::seconds(300)))
        << client.load().DebugString();
    fmt::print(
        "{:.0f} s, {} visits, {:.1f} a second; resident {:.1f} MiB after a quarter of it, "
        "{:.1f} at the end; open files {}, {} before\n",
        seconds, crowd.done(), rate, memory / (1 << 20), server.resident_bytes() / (1 << 20),
        server.open_files(), files);
  }
  v1::Load load;
  EXPECT_TRUE(comes_true([&] {
    load = client.load();
    return load.slots().free() == kSlots && load.sessions().total() == 0 &&
           load.sessions().host_bytes() == 0;
  })) << load.DebugString();
  EXPECT_TRUE(comes_true([&] { return server.open_files() <= files; }))
      << server.open_files() << " open files once the clients are gone, " << files << " before";
  // A short run has not filled all caches, and ASan retains freed memory.
  if (seconds >= 60 && !kSanitized) {
    // What a jam of visits took goes back to the system every ten seconds.
    EXPECT_TRUE(comes_true([&] { return server.resident_bytes() <= memory + (4 << 20); }))
        << server.resident_bytes() / (1 << 20) << " MiB, " << memory / (1 << 20) << " before";
  }
  EXPECT_EQ(server.stop(), 0) << server.log();
}

}  // namespace recurve::testing::soak_test

// Sessions of durability remote of several tenants, with a store that is slow.
#include "server/serving/shared_sessions.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "server/engine/engine.h"
#include "server/identity/tenants.h"
#include "server/serving/server_core.h"
#include "tests/server/object_store/faulty_store.h"
#include "tests/support/engine/null_model.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::shared_sessions_test {

using ::testing::HasSubstr;

class SharedSessionsTest : public ::testing::Test {
 protected:
  SharedSessionsTest() {
    core_.serve(*served_, std::make_shared<FakeTokenizer>(),
                {.model_name = "null",
                 .vocab_rows = FakeTokenizer::kSize,
                 .slots = 1,
                 .adapters = {std::make_shared<const BoundAdapter>(
                     BoundAdapter{.id = {.name = "story", .digest = "d"}})}});
    engine_thread_ = std::thread([this] { engine_.run(); });
    shared_.emplace(store_, nullptr, /*is_checked=*/true, 1 << 20, "server", core_);
    const Tenant many = tenant_named("many"), one = tenant_named("one");
    many_.tenant = many.id, many_.tenant_name = many.name;
    one_.tenant = one.id, one_.tenant_name = one.name;
  }
  ~SharedSessionsTest() override {
    served_->queue.close();  // what still waits ends at once
    faulty_.let_all_through();
    shared_.reset();
    engine_thread_.join();
  }
  Refused open(const Identity& caller, const std::string& name) {
    return shared_->post({.kind = SessionCommand::Kind::kOpen,
                          .caller = caller,
                          .name = name,
                          .durability = Durability::kRemote,
                          .done = [](const SessionResult&) {}});
  }

  SessionResult result_of(SessionCommand command) {
    std::promise<SessionResult> promised;
    command.caller = one_;
    command.done = [&](SessionResult result) { promised.set_value(std::move(result)); };
    if (Refused refused = shared_->post(std::move(command))) {
      return {.reason = refused->reason, .message = refused->message};
    }
    return promised.get_future().get();
  }

  // None, on a server that has tenants.
  std::shared_ptr<Keyring> keys() {
    const std::string file = (folder_ / "keys.json").string();
    std::ofstream(file) << R"({"keys": []})";
    return std::make_shared<Keyring>(file);
  }

  const TempDir folder_;
  FaultyStore faulty_;
  HttpClient http_{{}};
  const AwsEnvironment environment_{.key_id = "AKIDEXAMPLE", .secret = "secret"};
  const std::unique_ptr<AwsCredentialSource> credentials_ =
      find_aws_credentials(environment_, "", http_);
  ObjectStore store_{
      parse_object_store("s3://bucket", faulty_.url(), ""), "us-east-1", *credentials_, http_, {}};
  std::unique_ptr<Backend> backend_ = make_backend("reference");
  NullModel model_{FakeTokenizer::kSize};
  Metrics metrics_;
  const std::shared_ptr<ServedModel> served_ = std::make_shared<ServedModel>(2);
  ServerCore core_{{.keys = keys()}, {served_}, metrics_};
  Engine engine_{model_,
                 *backend_,
                 {.rows = FakeTokenizer::kSize, .usable = FakeTokenizer::kSize, .eos_ids = {}},
                 served_->queue,
                 served_->stats,
                 metrics_,
                 {.slots = 1, .sessions = {.host_bytes = 1 << 20}}};
  std::thread engine_thread_;
  std::optional<SharedSessions> shared_;
  Identity many_ = kAnyone, one_ = kAnyone;
};

TEST_F(SharedSessionsTest, ATenantWithManyWorksLeavesRoomAndTurnsToAnother) {
  constexpr int kMostOfAll = 4096;
  faulty_.hold();
  int waiting = 0;
  Refused refused;
  while (waiting < kMostOfAll && !refused) {
    refused = open(many_, fmt::format("s{}", waiting));
    waiting += !refused;
  }
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->message, HasSubstr("tenant \"many\" has used its share"));
  EXPECT_EQ(waiting, kMostOfAll * 3 / 4);
  ASSERT_EQ(faulty_.arrived(kStoreThreads).size(), static_cast<size_t>(kStoreThreads));
  ASSERT_FALSE(open(one_, "s"));
  faulty_.let_all_through();
  // The next thread that is free serves the other tenant. Threads that are free later may
  // overtake it on the way to the store.
  std::set<std::string> before;
  for (size_t number = 0;; ++number) {
    const std::string key = faulty_.arrived(number + 1)[number];
    if (key == head_key("one", "s")) break;
    before.insert(key);
  }
  EXPECT_LT(before.size(), size_t{kMostOfAll / 8});
}

// By each of the ways in which one could come to the store.
TEST_F(SharedSessionsTest, ASessionWithAnAdapterIsRefusedByName) {
  using Kind = SessionCommand::Kind;
  const BindingNames story{.adapter = "story"};
  const auto sentence = HasSubstr("durability remote has no adapter, and this one would have");
  EXPECT_THAT(
      result_of(
          {.kind = Kind::kOpen, .name = "a", .durability = Durability::kRemote, .chosen = story})
          .message,
      sentence);
  const SessionResult opened = result_of({.kind = Kind::kOpen, .name = "a", .chosen = story});
  ASSERT_EQ(opened.reason, EndReason::kDone) << opened.message;
  EXPECT_EQ(opened.sessions.front().binding.adapter, "story");
  EXPECT_THAT(
      result_of({.kind = Kind::kFork, .name = "a", .other = "b", .durability = Durability::kRemote})
          .message,
      sentence);
  const auto computed = std::make_shared<ReadyState>();
  computed->adapter = {.name = "story", .digest = "d"};
  EXPECT_THAT(result_of({.kind = Kind::kImport,
                         .name = "c",
                         .durability = Durability::kRemote,
                         .state = computed})
                  .message,
              sentence);
  EXPECT_EQ(shared_->move_to_store(Clock::now() + std::chrono::minutes(1)).failed, 1);
  EXPECT_EQ(result_of({.kind = Kind::kGet, .name = "a"}).reason, EndReason::kDone) << "it stays";
}

}  // namespace recurve::testing::shared_sessions_test

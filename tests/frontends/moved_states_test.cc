// Sessions of folders and stores that earlier servers have written are continued from a store, by
// any server, to the bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/serving/head_record.h"
#include "server/serving/server_core.h"
#include "server/serving/shared_sessions.h"
#include "server/session/state_transfer.h"
#include "tests/server/engine/tier_server.h"
#include "tests/server/object_store/faulty_store.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::moved_states_test {
namespace {

namespace fs = std::filesystem;
using Kind = SessionCommand::Kind;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using tiers_test::kBallast;
using tiers_test::turn;

std::vector<TokenBits> bits_after(const std::vector<Request>& turns) {
  return tiers_test::Server::quiet(turns)->bits();
}

std::string file_text(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// A server at a store, with a folder or without.
class Replica {
 public:
  explicit Replica(const FaultyStore& at, const fs::path& folder = {})
      : store_(parse_object_store("s3://bucket", at.url(), ""), "us-east-1", *credentials_, http_,
               {}) {
    if (!folder.empty()) {
      states_.emplace(open_folder(folder.string()), StateStore::Options());
      archive_.emplace(*states_);
    }
    StateHeader wanted;
    wanted.layout = model_.state_layout();
    core_.serve(*served_, std::make_shared<FakeTokenizer>(),
                {.model_name = "null",
                 .vocab_rows = NullHarness::kVocab,
                 .slots = 2,
                 .read_state = state_reader(wanted),
                 .most_written_bytes = 1 << 20});
    engine_.emplace(model_, *backend_,
                    SamplingVocab{.rows = NullHarness::kVocab, .usable = NullHarness::kVocab},
                    served_->queue, served_->stats, metrics_,
                    EngineOptions{.slots = 2,
                                  .sessions = {.host_bytes = 1 << 24,
                                               .archive = archive_ ? &*archive_ : nullptr,
                                               .disk_bytes = int64_t{1} << 30}});
    engine_thread_ = std::thread([this] { engine_->run(); });
    shared_.emplace(store_, nullptr, /*is_checked=*/true, 1 << 20, "server", core_);
  }
  ~Replica() {
    shared_.reset();
    served_->queue.close();
    engine_thread_.join();
  }

  SharedSessions& shared() { return *shared_; }

  SessionResult command(SessionCommand command) {
    std::promise<SessionResult> promise;
    command.done = [&promise](SessionResult result) { promise.set_value(std::move(result)); };
    if (Refused refused = shared_->post(std::move(command))) {
      return refused_command(refused->reason, refused->message);
    }
    return promise.get_future().get();
  }

  // As `recurve session move NAME --durability remote` does.
  SessionResult move_to_store(const std::string& name) {
    const SessionResult exported = command({.kind = Kind::kExport, .name = name});
    if (exported.reason != EndReason::kDone) return exported;
    std::string text(exported.state->bytes(), '\0');
    exported.state->read(0, text);
    SessionResult closed = command({.kind = Kind::kClose, .name = name});
    if (closed.reason != EndReason::kDone) return closed;
    return command({.kind = Kind::kImport,
                    .name = name,
                    .durability = Durability::kRemote,
                    .state = served_->info.read_state(text)});
  }

  std::vector<TokenBits> take(Request request) {
    Waker waker;
    SharedTurn turn(*shared_, kAnyone, request, [&waker] { waker.wake(); });
    waker.wait();
    const auto begun = turn.begun();
    EXPECT_TRUE(begun && begun->shared && !begun->refused)
        << (begun && begun->refused ? begun->refused->message : "");
    Answer answer;
    request.streams.push_back(answer.stream());
    served_->queue.push(std::move(request));
    answer.wait_for_end();
    turn.commit({.reason = answer.reason(), .ids = answer.ids()});
    waker.wait();
    const auto committed = turn.committed();
    EXPECT_TRUE(committed && !committed->refused);
    return answer.bits();
  }

 private:
  class Waker {
   public:
    void wake() {
      const std::lock_guard lock(mutex_);
      awake_ = true;
      changed_.notify_all();
    }
    void wait() {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return awake_; });
      awake_ = false;
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool awake_ = false;
  };

  HttpClient http_{{}};
  const AwsEnvironment environment_{.key_id = "AKIDEXAMPLE", .secret = "secret"};
  const std::unique_ptr<AwsCredentialSource> credentials_ =
      find_aws_credentials(environment_, "", http_);
  ObjectStore store_;
  std::optional<StateStore> states_;
  std::optional<Archive> archive_;
  std::unique_ptr<Backend> backend_ = make_backend("reference");
  NullModel model_{NullHarness::kVocab, {.chunk = NullHarness::kChunk, .ballast = kBallast}};
  Metrics metrics_;
  const std::shared_ptr<ServedModel> served_ = std::make_shared<ServedModel>(100);
  ServerCore core_{{}, {served_}, metrics_};
  std::optional<Engine> engine_;
  std::thread engine_thread_;
  std::optional<SharedSessions> shared_;
};

// tests/golden/state_version_2, in the form that servers wrote until 29 November 2026.
class MovedStates : public ::testing::Test {
 protected:
  MovedStates() {
    fs::copy(golden_dir() / "state_version_2", dir_.path(), fs::copy_options::recursive);
  }
  void expect_continued() {
    Replica other(store_);
    EXPECT_EQ(other.take(turn("s", 3)), bits_after({turn("s", 1), turn("s", 2), turn("s", 3)}));
    Replica third(store_);
    EXPECT_EQ(third.take(turn("f", 3)), bits_after({turn("f", 1), turn("f", 3)}));
    EXPECT_EQ(third.take(turn("s", 4)),
              bits_after({turn("s", 1), turn("s", 2), turn("s", 3), turn("s", 4)}));
  }

  const TempDir dir_;
  FaultyStore store_;
};

TEST_F(MovedStates, SessionsOfAnEarlierFolderMoveByCommands) {
  {
    Replica server(store_, dir_.path() / "states");
    ASSERT_EQ(server.command({.kind = Kind::kUnmark, .name = "s", .other = "here"}).reason,
              EndReason::kDone);
    for (const char* name : {"s", "f"}) {
      const SessionResult moved = server.move_to_store(name);
      ASSERT_EQ(moved.reason, EndReason::kDone) << moved.message;
      EXPECT_EQ(moved.sessions.front().durability, Durability::kRemote);
    }
  }
  expect_continued();
}

TEST_F(MovedStates, SessionsOfAnEarlierFolderMoveAtADrain) {
  {
    Replica server(store_, dir_.path() / "states");
    const auto moved = server.shared().move_to_store(Clock::now() + std::chrono::minutes(1));
    EXPECT_EQ(moved.moved, 2);
    EXPECT_EQ(moved.failed + moved.late, 0);
  }
  expect_continued();
  Replica again(store_, dir_.path() / "states");  // they are not in the folder any more
  EXPECT_EQ(again.take(turn("f", 4)), bits_after({turn("f", 1), turn("f", 3), turn("f", 4)}));
}

// A server of an earlier version has written a state, and one of a later version a head.
TEST_F(MovedStates, ServersOfTwoVersionsShareAStore) {
  StoreUser user(store_);
  RemoteSessions earlier(user.store, "earlier");
  const std::string state = file_text(dir_.path() / "s.state");
  const std::string_view parts[] = {state};
  OwnedSession owned;
  ASSERT_TRUE(earlier
                  .create(std::string(kAnyone.tenant_name), "s",
                          {.record = R"({"answer_is_blob":false,"position":31})", .added = {parts}},
                          &owned)
                  .done());
  const std::string head = head_key(kAnyone.tenant_name, "s");
  Replica server(store_);
  EXPECT_EQ(server.take(turn("s", 3)), bits_after({turn("s", 1), turn("s", 2), turn("s", 3)}));
  // As long as it has no marks, a server that knows the first form continues it.
  EXPECT_THAT(store_.objects().at(head), StartsWith("RCRVHEAD 1 "));
  ASSERT_TRUE(earlier.take_over(std::string(kAnyone.tenant_name), "s", &owned).done());
  ASSERT_EQ(server.command({.kind = Kind::kMark, .name = "s", .other = "m"}).reason,
            EndReason::kDone);
  EXPECT_THAT(store_.objects().at(head), StartsWith("RCRVHEAD 2 "));

  std::string later = store_.objects().at(head);
  later[9] = '5';
  store_.put(head, later);
  Replica other(store_);
  for (const Kind kind : {Kind::kGet, Kind::kExport, Kind::kClose, Kind::kMark, Kind::kFork}) {
    const SessionResult refused = other.command({.kind = kind, .name = "s", .other = "m"});
    EXPECT_EQ(refused.reason, EndReason::kNewerState);
    EXPECT_THAT(refused.message, HasSubstr("a newer server wrote it: update this one"));
  }
  const SessionResult refused =
      other.command({.kind = Kind::kOpen, .name = "s", .durability = Durability::kRemote});
  EXPECT_EQ(refused.reason, EndReason::kNewerState) << refused.message;
  EXPECT_EQ(store_.objects().at(head), later);
}

}  // namespace
}  // namespace recurve::testing::moved_states_test

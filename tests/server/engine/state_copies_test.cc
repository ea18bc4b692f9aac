// States on their way: between slots, and between a slot and host memory. Only the requests
// that need a state wait for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/engine/engine_harness.h"
#include "tests/support/engine/held_copies.h"

namespace recurve::testing::state_copies_test {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using Kind = SessionCommand::Kind;

Request request(size_t length, int max_tokens, uint64_t seed = 0, const std::string& session = "") {
  return NullHarness::request(length, max_tokens, seed, session);
}

class StateCopies : public ::testing::Test {
 protected:
  StateCopies() { start({.slots = 3}); }

  void start(const HarnessOptions& options) {
    auto backend = std::make_unique<HeldCopies>(make_backend("reference"));
    copies_ = backend.get();
    harness_.emplace(options, -1, std::move(backend));
  }
  EngineHarness& engine() { return **harness_; }

  // One that goes on all the time.
  AnswerPtr stream() {
    AnswerPtr answer = engine().submit(request(3, 1000));
    engine().step();
    engine().wait_for_copies();  // of whose slot it has
    engine().step(2);
    return answer;
  }
  // Steps, in each of which the stream gets its token.
  void expect_goes_on(Answer& stream) {
    const size_t before = (stream.take(), stream.tokens.size());
    engine().step(10);
    stream.take();
    EXPECT_EQ(stream.tokens.size(), before + 10);
  }
  void let_copies_go() {
    copies_->release();
    engine().wait_for_copies();
  }
  // The answers to the same two turns where nothing moves.
  std::vector<TokenBits> second_turn() {
    NullHarness quiet;
    quiet->open("s");
    quiet->ask(request(5, 4, 1, "s"));
    return quiet->ask(request(3, 6, 2, "s"))->bits();
  }
  void first_turn(const std::string& name = "s") {
    engine().open(name);
    AnswerPtr answer = engine().submit(request(5, 4, 1, name));
    finish(*answer);
    ASSERT_EQ(answer->reason(), EndReason::kLength);
  }
  void expect_second_turn(const std::string& name) {
    AnswerPtr answer = engine().submit(request(3, 6, 2, name));
    finish(*answer);
    EXPECT_EQ(answer->bits(), second_turn()) << name;
  }
  void finish(Answer& answer) {
    for (int step = 0; step < 10000 && !answer.ended(); ++step) {
      if (!engine().step()) engine().wait_for_copies();
      answer.take();
    }
    EXPECT_TRUE(answer.ended());
  }

  std::optional<NullHarness> harness_;
  HeldCopies* copies_ = nullptr;
};

TEST_F(StateCopies, ASessionThatLeavesItsSlotHoldsUpOnlyWhoComesIntoIt) {
  first_turn();
  AnswerPtr stream = this->stream(), second = this->stream();
  copies_->hold();
  AnswerPtr comes = engine().submit(request(5, 4, 7));
  engine().step();
  EXPECT_EQ(engine().get("s").tier, Tier::kHost) << "its slot was wanted";
  expect_goes_on(*stream);
  comes->take();
  EXPECT_THAT(comes->tokens, SizeIs(0));
  let_copies_go();
  finish(*comes);
  EXPECT_EQ(comes->bits(), harness_->alone(request(5, 4, 7))->bits());
  expect_second_turn("s");
}

TEST_F(StateCopies, ASessionThatComesIntoASlotDelaysNoRequest) {
  start({.slots = 2});
  first_turn();
  first_turn("other");
  AnswerPtr stream = this->stream();
  ASSERT_EQ(engine().get("s").tier, Tier::kHost);
  copies_->hold();
  AnswerPtr answer = engine().submit(request(3, 6, 2, "s"));
  engine().step();
  EXPECT_EQ(engine().get("s").tier, Tier::kSlot);
  EXPECT_EQ(engine().get("other").tier, Tier::kHost);
  expect_goes_on(*stream);
  answer->take();
  EXPECT_TRUE(answer->accepted);
  EXPECT_THAT(answer->tokens, SizeIs(0));
  let_copies_go();
  finish(*answer);
  EXPECT_EQ(answer->bits(), second_turn());
  expect_second_turn("other");
}

TEST_F(StateCopies, AMarkAndAForkDelayNoRequest) {
  first_turn();
  AnswerPtr stream = this->stream();
  copies_->hold();
  EXPECT_EQ(engine().command(Kind::kFork, "s", "fork").reason, EndReason::kDone);
  EXPECT_EQ(engine().get("fork").tier, Tier::kSlot) << "a slot was free";
  EXPECT_EQ(engine().command(Kind::kMark, "s", "here").reason, EndReason::kDone);
  EXPECT_EQ(engine().command(Kind::kFork, "s", "third").reason, EndReason::kDone);
  EXPECT_EQ(engine().get("third").tier, Tier::kHost) << "none was";
  AnswerPtr waits = engine().submit(request(3, 6, 2, "s"));
  expect_goes_on(*stream);
  waits->take();
  EXPECT_THAT(waits->tokens, SizeIs(0)) << "its state is being read";
  let_copies_go();
  finish(*waits);
  EXPECT_EQ(waits->bits(), second_turn());
  for (const std::string name : {"fork", "third"}) expect_second_turn(name);
  engine().command(Kind::kRewind, "s", "here");
  expect_second_turn("s");
}

// All asked for before the first copy is made.
TEST_F(StateCopies, AreInTheOrderInWhichTheyWereAskedFor) {
  first_turn();
  copies_->hold();
  engine().command(Kind::kMark, "s", "here");
  engine().command(Kind::kFork, "s", "a");
  engine().command(Kind::kClose, "s");
  engine().command(Kind::kFork, "a", "b");
  engine().command(Kind::kMark, "b", "here");
  engine().command(Kind::kRewind, "b", "here");
  engine().command(Kind::kFork, "b", "c");
  AnswerPtr fresh = engine().submit(request(5, 4, 7)), more = engine().submit(request(5, 4, 8));
  engine().step(3);
  let_copies_go();
  finish(*fresh), finish(*more);
  EXPECT_EQ(fresh->bits(), harness_->alone(request(5, 4, 7))->bits());
  EXPECT_EQ(more->bits(), harness_->alone(request(5, 4, 8))->bits());
  for (const std::string name : {"a", "b", "c"}) expect_second_turn(name);
}

TEST_F(StateCopies, AnImageIsSharedNotCopied) {
  first_turn();
  AnswerPtr a = this->stream(), b = this->stream(), c = this->stream();
  ASSERT_EQ(engine().get("s").tier, Tier::kHost);
  let_copies_go();
  copies_->hold();
  engine().command(Kind::kMark, "s", "here");
  engine().command(Kind::kFork, "s", "fork");
  engine().command(Kind::kMark, "fork", "here");
  EXPECT_FALSE(engine().engine().copying());
  for (const std::string name : {"s", "fork"}) EXPECT_EQ(engine().get(name).tier, Tier::kHost);
}

// However many marks, forks and exports are made of it, until it has another state.
TEST_F(StateCopies, AnUnchangedSessionIsCopiedOnce) {
  first_turn();
  for (const char* mark : {"a", "b"}) engine().command(Kind::kMark, "s", mark);
  engine().command(Kind::kFork, "s", "fork");
  EXPECT_EQ(engine().command(Kind::kExport, "s").reason, EndReason::kDone);
  engine().run_until_idle();
  EXPECT_EQ(engine().get("s").tier, Tier::kSlot) << "nothing of this needs its slot";
  EXPECT_EQ(engine().stats().host_bytes, harness_->state_bytes());
  expect_second_turn("s");
  engine().command(Kind::kMark, "s", "b");
  engine().run_until_idle();
  EXPECT_EQ(engine().stats().host_bytes, 2 * harness_->state_bytes());
  expect_second_turn("fork");
}

TEST_F(StateCopies, ARequestIsCancelledWhileItsStateIsOnItsWay) {
  start({.slots = 2});
  first_turn();
  first_turn("other");
  AnswerPtr stream = this->stream();
  copies_->hold();
  AnswerPtr cancelled = engine().submit(request(3, 6, 2, "s"));
  engine().step(2);
  cancelled->stream()->cancel();
  engine().step();
  cancelled->take();
  EXPECT_EQ(cancelled->reason(), EndReason::kCancelled);
  EXPECT_FALSE(engine().get("s").busy);
  engine().command(Kind::kMark, "s", "here");
  let_copies_go();
  expect_second_turn("s");
  expect_second_turn("other");
}

TEST_F(StateCopies, ChoicesWaitForTheirCopiesOfThePromptsState) {
  first_turn();  // whose slot one of the choices needs
  AnswerPtr stream = this->stream();
  Request target = request(20, 5, 7);
  target.sampling.temperature = 1;
  std::vector<AnswerPtr> choices = engine().submit(target, 2);
  engine().step();
  engine().wait_for_copies();
  engine().step();
  copies_->hold();  // before the prompt's end, where its state is copied
  expect_goes_on(*stream);
  for (AnswerPtr& choice : choices) {
    choice->take();
    EXPECT_THAT(choice->tokens, SizeIs(1)) << "of the prompt's last row, which is there";
  }
  let_copies_go();
  for (size_t c = 0; c < choices.size(); ++c) {
    finish(*choices[c]);
    Request alone = target;
    alone.sampling.seed += c;
    EXPECT_EQ(choices[c]->bits(), harness_->alone(alone)->bits()) << c;
  }
  expect_second_turn("s");
}

TEST_F(StateCopies, ShutdownWaitsForThem) {
  first_turn();
  copies_->hold();
  engine().command(Kind::kMark, "s", "here");
  engine().command(Kind::kFork, "s", "fork");
  copies_->release();
  harness_.reset();
}

// Whose copies fail; what is only zeroed does not.
class BrokenCopies final : public Backend {
 public:
  BrokenCopies() : Backend("broken", make_backend("reference")->kernels()) {}
  std::unique_ptr<Stream> make_stream() override { return inner_->make_stream(); }
  void upload(void* to, const void* from, size_t bytes, Stream& stream) override {
    inner_->upload(to, from, bytes, stream);
  }
  void download(void* to, const void* from, size_t bytes, Stream& stream) override {
    inner_->download(to, from, bytes, stream);
  }
  void copy(void* to, const void* from, size_t bytes, Stream& stream) override {
    inner_->copy(to, from, bytes, stream);
  }
  void zero(void* to, size_t bytes, Stream& stream) override { inner_->zero(to, bytes, stream); }
  bool hands_over_copies(size_t) const override { return true; }
  void copy_pieces(std::span<const CopyPiece> pieces, Stream& stream) override {
    for (const CopyPiece& piece : pieces) {
      if (piece.from != nullptr) throw std::runtime_error("the device has fallen off the bus");
    }
    inner_->copy_pieces(pieces, stream);
  }

 private:
  std::byte* take_memory(size_t bytes) override {
    return bytes == 0 ? nullptr : static_cast<std::byte*>(std::calloc(1, (bytes + 63) / 64 * 64));
  }
  void give_memory(std::byte* data, size_t) override { std::free(data); }
  const std::unique_ptr<Backend> inner_ = make_backend("reference");
};

TEST(StateCopiesThatFail, EndTheEngineAndTellEverybody) {
  std::promise<std::string> said;
  NullHarness harness({.on_failure = [&](const char* what) { said.set_value(what); }}, -1,
                      std::make_unique<BrokenCopies>());
  harness->start();
  harness->open("s");
  AnswerPtr first = harness->submit(request(5, 2, 1, "s"));
  first->wait_for_end();
  AnswerPtr stream = harness->submit(request(3, 1'000'000));
  ASSERT_TRUE(stream->wait());
  harness->command(Kind::kMark, "s", "here");
  AnswerPtr waits = harness->submit(request(3, 4, 2, "s"));
  EXPECT_THAT(said.get_future().get(), HasSubstr("fallen off the bus"));
  stream->wait_for_end(), waits->wait_for_end();
  EXPECT_EQ(stream->reason(), EndReason::kFailed);
}

}  // namespace recurve::testing::state_copies_test

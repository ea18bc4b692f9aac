// Two models behind one core: what is full or spent for one is not for the other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/engine/fake_engine.h"
#include "tests/support/fake_frontend.h"
#include "tests/support/fake_tokenizer.h"

namespace recurve::testing::models_test {

using ::testing::HasSubstr;

constexpr int kSlots = 2, kQueue = 6;

// The first model has no engine: its requests stay in the queue.
class ModelsOfOneCoreTest : public ::testing::Test {
 protected:
  ModelsOfOneCoreTest() {
    for (size_t m = 0; m < models_.size(); ++m) {
      core_.serve(*models_[m], std::make_shared<FakeTokenizer>(),
                  {.model_name = m == 0 ? "a" : "b",
                   .vocab_rows = FakeTokenizer::kSize,
                   .tokens = {.bos = FakeTokenizer::kBos, .eos = {FakeTokenizer::kEos}},
                   .slots = kSlots});
    }
  }
  ~ModelsOfOneCoreTest() override {
    // Ends what waits.
    FakeEngine engine(models_[0]->queue, {});
    for (const auto& sink : waiting_) EXPECT_TRUE(sink->wait_for_end());
  }

  static TextRequest request(const std::shared_ptr<ServedModel>& model, const Identity& caller) {
    return {.caller = caller, .model = model, .prompt = "ab", .max_tokens = 2};
  }
  void wait(const Identity& caller) {
    const int before = models_[0]->queue.waiting();
    waiting_.push_back(std::make_unique<FakeSink>(core_, request(models_[0], caller)));
    while (models_[0]->queue.waiting() == before) std::this_thread::yield();
  }
  Refused refusal(size_t model, const Identity& caller = kAnyone) {
    FakeSink sink(core_, request(models_[model], caller));
    EXPECT_TRUE(sink.wait_for_end());
    return sink.refusal();
  }

  Metrics metrics_;
  const ServedModels models_ = {std::make_shared<ServedModel>(kQueue),
                                std::make_shared<ServedModel>(kQueue)};
  ServerCore core_{{}, models_, metrics_};
  FakeEngine of_second_{models_[1]->queue, {}};
  std::vector<std::unique_ptr<FakeSink>> waiting_;
};

TEST_F(ModelsOfOneCoreTest, AFullQueueRefusesRequestsOfItsModelAlone) {
  for (int i = 0; i < kQueue; ++i) wait(kAnyone);
  const Refused refused = refusal(0);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->reason, EndReason::kExhausted);
  EXPECT_THAT(refused->message, HasSubstr("the queue is full with 6 requests"));
  EXPECT_FALSE(refusal(1));
}

TEST_F(ModelsOfOneCoreTest, AClientHasItsShareOfEachQueue) {
  const Identity client{.visitor = visitor_of("192.0.2.1", 1)};
  models_[0]->stats.publish({.running = kSlots, .slots = kSlots});
  for (int i = 0; i < kQueue - 1; ++i) wait(client);
  const Refused refused = refusal(0, client);
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->message, HasSubstr("has used its share of the queue"));
  EXPECT_FALSE(refusal(1, client));
  EXPECT_FALSE(core_.enter({.visitor = visitor_of("192.0.2.2", 1)}, *models_[0]))
      << "the rest is for others";
  core_.leave({.visitor = visitor_of("192.0.2.2", 1)}, *models_[0]);
}

TEST_F(ModelsOfOneCoreTest, AModelThatFailedIsRefusedByItsName) {
  EXPECT_TRUE(core_.model_failed(*models_[0]));
  std::shared_ptr<ServedModel> found;
  const Refused refused = core_.find({.name = "a"}, &found);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->reason, EndReason::kModelFailed);
  EXPECT_THAT(refused->message, HasSubstr("the model \"a\" has failed"));
  EXPECT_FALSE(core_.find({.name = "b"}, &found));
  EXPECT_EQ(found, models_[1]);
  EXPECT_FALSE(core_.model_failed(*models_[1])) << "no model serves";
}

TEST_F(ModelsOfOneCoreTest, ANameOfASessionFindsItsModel) {
  const TenantId tenant = kAnyone.tenant;
  SessionNames::Claim claim = core_.session_names.claim(tenant, "s", "b");
  ASSERT_NE(claim, nullptr);
  EXPECT_EQ(core_.session_names.claim(tenant, "s", "a"), nullptr);
  EXPECT_NE(core_.session_names.claim(tenant + 1, "s", "a"), nullptr);
  std::shared_ptr<ServedModel> found;
  EXPECT_FALSE(core_.find({.tenant = tenant, .session = "s"}, &found));
  EXPECT_EQ(found, models_[1]);
  const Refused refused = core_.find({.name = "a", .tenant = tenant, .session = "s"}, &found);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->message, R"(session "s" is of the model "b", not of "a")");
  claim = nullptr;
  EXPECT_FALSE(core_.find({.name = "a", .tenant = tenant, .session = "s"}, &found));
  EXPECT_EQ(found, models_[0]);
}

}  // namespace recurve::testing::models_test

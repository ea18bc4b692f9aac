// Two models behind one core: what is full or spent for one is not for the other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
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
      core_.serve(*models_[m], std::make_shared<FakeTokenizer>(), info(m == 0 ? "a" : "b"));
    }
  }
  static ServingInfo info(const std::string& name) {
    return {.model_name = name,
            .vocab_rows = FakeTokenizer::kSize,
            .tokens = {.bos = FakeTokenizer::kBos, .eos = {FakeTokenizer::kEos}},
            .slots = kSlots};
  }
  ~ModelsOfOneCoreTest() override {
    // Ends what waits.
    FakeEngine engine(models_[0]->queue, {});
    for (const auto& sink : waiting_) EXPECT_TRUE(sink->wait_for_end());
  }

  // One more model, "c".
  std::shared_ptr<ServedModel> add(ModelUse* use) {
    auto model = std::make_shared<ServedModel>(kQueue);
    core_.load(*model, std::make_shared<FakeTokenizer>(), info("c"));
    core_.add(use->begin(model));
    return model;
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

  Metrics metrics_{{.models = {"a", "b"}}};
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
  FoundModel found;
  const Refused refused = core_.find({.name = "a"}, &found);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->reason, EndReason::kModelFailed);
  EXPECT_THAT(refused->message, HasSubstr("the model \"a\" has failed"));
  EXPECT_FALSE(core_.find({.name = "b"}, &found));
  EXPECT_EQ(found.model, models_[1]);
  EXPECT_FALSE(core_.model_failed(*models_[1])) << "no model serves";
}

TEST_F(ModelsOfOneCoreTest, ANameOfASessionFindsItsModel) {
  const TenantId tenant = kAnyone.tenant;
  SessionNames::Claim claim = core_.session_names.claim(tenant, "s", "b");
  ASSERT_NE(claim, nullptr);
  EXPECT_EQ(core_.session_names.claim(tenant, "s", "a"), nullptr);
  EXPECT_NE(core_.session_names.claim(tenant + 1, "s", "a"), nullptr);
  FoundModel found;
  EXPECT_FALSE(core_.find({.caller = kAnyone, .session = "s"}, &found));
  EXPECT_EQ(found.model, models_[1]);
  const Refused refused = core_.find({.name = "a", .caller = kAnyone, .session = "s"}, &found);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->message, R"(session "s" is of the model "b", not of "a")");
  claim = nullptr;
  EXPECT_FALSE(core_.find({.name = "a", .caller = kAnyone, .session = "s"}, &found));
  EXPECT_EQ(found.model, models_[0]);
}

TEST_F(ModelsOfOneCoreTest, AnAdapterIsFoundInPlaceOfItsModel) {
  const auto with = [](const std::string& model, std::initializer_list<const char*> adapters) {
    ServingInfo all = info(model);
    for (const char* name : adapters) {
      all.adapters.push_back(
          std::make_shared<const BoundAdapter>(BoundAdapter{.id = {.name = name}}));
    }
    return all;
  };
  const auto c = std::make_shared<ServedModel>(kQueue), d = std::make_shared<ServedModel>(kQueue);
  core_.load(*c, std::make_shared<FakeTokenizer>(), with("c", {"x", "y"}));
  core_.load(*d, std::make_shared<FakeTokenizer>(), with("d", {"x", "z"}));
  core_.add(c);
  core_.add(d);
  const auto found = [&](const std::string& name, const std::string& session = "") {
    FoundModel model;
    const Refused refused =
        core_.find({.name = name, .caller = kAnyone, .session = session}, &model);
    return refused ? refused->message : model->name() + "+" + model.adapter;
  };
  EXPECT_EQ(found("x"), "c+x");
  EXPECT_EQ(found("z"), "d+z");
  EXPECT_EQ(found("d:x"), "d+x");
  EXPECT_EQ(found("d"), "d+");
  const SessionNames::Claim claim = core_.session_names.claim(kAnyone.tenant, "s", "d");
  EXPECT_EQ(found("x", "s"), "d+x") << "of the session's model";
  EXPECT_EQ(found("", "s"), "d+");
  EXPECT_EQ(found("c:x", "s"), R"(session "s" is of the model "d", not of "c")");
  for (const std::string name : {"c:z", "d:", ":x", "w", "a:x"}) {
    EXPECT_EQ(found(name), "unknown model \"" + name +
                               R"(": this server has "a", "b", "c", "d" and the adapters )"
                               R"("x", "y", "x", "z")");
  }
}

TEST_F(ModelsOfOneCoreTest, ARetainedNameIsForItsModelAlone) {
  const TenantId tenant = kAnyone.tenant;
  SessionNames& names = core_.session_names;
  SessionNames::Claim claim = names.claim(tenant, "s", "c");
  names.retain(tenant, "s");
  claim = nullptr;
  FoundModel found;
  const Refused refused = core_.find({.caller = kAnyone, .session = "s"}, &found);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->reason, EndReason::kNotFound);
  EXPECT_EQ(
      refused->message,
      R"(session "s" is of the model "c", which is not loaded now: this server has "a", "b")");
  EXPECT_EQ(names.claim(tenant, "s", "a"), nullptr);
  claim = names.claim(tenant, "s", "c");
  EXPECT_NE(claim, nullptr);
  EXPECT_EQ(names.claim(tenant, "s", "c"), nullptr) << "once";
  claim = nullptr;
  EXPECT_EQ(names.model_of(tenant, "s"), "");
}

TEST_F(ModelsOfOneCoreTest, ARequestUsesARemovedModelToItsEnd) {
  ModelUse use;
  const auto model = add(&use);
  FoundModel found;
  ASSERT_FALSE(core_.find({.name = "c"}, &found));
  EXPECT_EQ(found.model, model);
  auto sink = std::make_unique<FakeSink>(core_, request(std::exchange(found, {}).model, kAnyone));
  while (model->queue.waiting() == 0) std::this_thread::yield();
  core_.remove(*model);
  const Refused refused = core_.find({.name = "c"}, &found);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->message, R"(unknown model "c": this server has "a", "b")");
  EXPECT_FALSE(use.wait_for_end(Clock::now()));
  FakeEngine engine(model->queue, {});
  EXPECT_TRUE(sink->wait_for_end());
  sink = nullptr;
  EXPECT_TRUE(use.wait_for_end(Clock::time_point::max()));
}

// Before the engine has it, and by the engine that ends.
TEST_F(ModelsOfOneCoreTest, RequestsThatAnUnloadEndsAreToldTheModel) {
  ModelUse use;
  const auto model = add(&use);
  FakeSink waiting(core_, request(model, kAnyone));
  while (model->queue.waiting() == 0) std::this_thread::yield();
  core_.remove(*model);
  FakeSink late(core_, request(model, kAnyone));
  EXPECT_TRUE(late.wait_for_end());
  FakeEngine engine(model->queue, {.script = [](const Request&) {
                      return FakeEngine::Play{.tokens = {{}}, .failure = EndReason::kDraining};
                    }});
  EXPECT_TRUE(waiting.wait_for_end());
  for (const FakeSink* sink : {&waiting, &late}) {
    ASSERT_TRUE(sink->refusal());
    EXPECT_EQ(sink->refusal()->reason, EndReason::kUnloading);
    EXPECT_EQ(sink->refusal()->message, "the model \"c\" is being unloaded: use another one");
  }
}

TEST_F(ModelsOfOneCoreTest, AClientThatReadsNothingIsCut) {
  ModelUse use;
  const auto model = add(&use);
  FoundModel found;
  ASSERT_FALSE(core_.find({.name = "c"}, &found));
  FakeEngine engine(model->queue, {});
  FakeSink other(core_, request(models_[1], kAnyone), {.held = true});
  FakeSink sink(core_, request(std::exchange(found, {}).model, kAnyone), {.held = true});
  EXPECT_TRUE(sink.wait_for(1));
  EXPECT_TRUE(other.wait_for(1));
  core_.remove(*model);
  EXPECT_FALSE(use.wait_for_end(Clock::now()));
  core_.end(*model);
  EXPECT_TRUE(sink.wait_for_end());
  EXPECT_TRUE(use.wait_for_end(Clock::time_point::max()));
  other.let_go();
  EXPECT_TRUE(other.wait_for_end());
  EXPECT_FALSE(other.refusal()) << "it uses another model";
}

// An export is read from what the engine has.
TEST_F(ModelsOfOneCoreTest, AnExportedStateUsesItsModelUntilThatEnds) {
  class Source final : public StateSource {
   public:
    uint64_t bytes() override { return 7; }
    void read(uint64_t, std::span<char>) override {}
  };
  ModelUse use;
  const auto model = add(&use);
  SessionResult exported;
  SessionCommand command{.kind = SessionCommand::Kind::kExport, .model = "c", .name = "s"};
  command.done = [&](SessionResult result) { exported = std::move(result); };
  ASSERT_FALSE(core_.post(std::move(command)));
  core_.remove(*model);
  EXPECT_FALSE(use.wait_for_end(Clock::now())) << "of a command";
  for (SessionCommand& taken : model->queue.take().commands) {
    taken.done({.state = std::make_shared<Source>()});
  }
  EXPECT_FALSE(use.wait_for_end(Clock::now())) << "of a state";
  EXPECT_EQ(exported.state->bytes(), 7u);
  core_.end(*model);
  EXPECT_TRUE(use.wait_for_end(Clock::time_point::max()));
  EXPECT_THROW(exported.state->bytes(), StateGone);
}

TEST_F(ModelsOfOneCoreTest, OthersAreFoundWhileModelsComeAndGo) {
  std::atomic<bool> done{false};
  const auto use_all = [&] {
    FoundModel found;
    while (!done) {
      EXPECT_FALSE(core_.find({.name = "b"}, &found));
      EXPECT_EQ(found.model, models_[1]);
      if (!core_.find({.name = "c"}, &found)) {
        EXPECT_EQ(found->info.slots, kSlots);
      }
      EXPECT_GE(load_of(core_.models()).max_queue, 2 * kQueue);
      EXPECT_FALSE(core_.queues_are_full());
      core_.report(refuse(EndReason::kExhausted));
      EXPECT_FALSE(metrics_.text().empty());
    }
  };
  std::thread others[] = {std::thread(use_all), std::thread(use_all)};
  for (int i = 0; i < 100; ++i) {
    ModelUse use;
    const auto model = add(&use);
    std::this_thread::yield();
    core_.remove(*model);
    EXPECT_TRUE(use.wait_for_end(Clock::time_point::max()));
    metrics_.remove_model("c");
  }
  done = true;
  for (std::thread& other : others) other.join();
}

}  // namespace recurve::testing::models_test

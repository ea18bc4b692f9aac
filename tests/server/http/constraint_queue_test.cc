// Requests that wait for their constraints to be compiled, in front of the queue.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <latch>

#include "server/constraint/compiler.h"
#include "tests/support/http_fixture.h"

namespace recurve::constraint_queue_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class ConstraintQueueTest : public testing::HttpFixture {
 protected:
  // Nothing is compiled before `release_`, and one may wait.
  void SetUp() override {
    if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
    start();
    served_->constraints = std::make_unique<ConstraintCompiler>(
        [this] {
          began_.count_down();
          release_.wait();
          TokenTexts texts;
          for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
          texts.resize(FakeTokenizer::kSize);
          return texts;
        },
        CompileLimits{.most_waiting = 1});
  }
  static json asked(const std::string& schema) {
    json body = completion("hello");
    body["response_format"] = {
        {"type", "json_schema"},
        {"json_schema", {{"name", "x"}, {"schema", json::parse(schema)}, {"strict", true}}}};
    return body;
  }

  std::latch began_{1}, release_{1};
};

TEST_F(ConstraintQueueTest, ARequestWaitsThereAndHoldsNothing) {
  auto waiting = std::async(std::launch::async,
                            [&] { return post("/v1/completions", asked(R"({"type":"null"})")); });
  began_.wait();
  // Others are served, and no other is compiled: it is to come again.
  EXPECT_EQ(post("/v1/completions", completion("free")).object()["choices"][0]["text"], "free");
  EXPECT_EQ(engine_->last_request().sampling.constraint, nullptr);
  const auto full = post("/v1/completions", asked(R"({"type":"boolean"})"));
  EXPECT_EQ(full.status, 429) << full.body;
  EXPECT_THAT(full.body, HasSubstr("too many constraints wait to be compiled"));
  EXPECT_THAT(full.head, HasSubstr("retry-after-ms: "));
  EXPECT_EQ(queue_.waiting(), 0) << "it is not in the queue";
  release_.count_down();
  EXPECT_EQ(waiting.get().status, 200);
  ASSERT_NE(engine_->last_request().sampling.constraint, nullptr);
  EXPECT_EQ(engine_->last_request().sampling.constraint->text().text, R"({"type":"null"})");
}

}  // namespace
}  // namespace recurve::constraint_queue_test

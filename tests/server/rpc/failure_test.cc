// Exceptions on text and delivery threads end one call, with an error.
#include <gmock/gmock.h>

#include <new>
#include <stdexcept>

#include "tests/support/rpc_fixture.h"

namespace recurve::failure_test {

using grpc::StatusCode;
using ::testing::HasSubstr;

void run_out_of_memory() { throw std::bad_alloc(); }
void have_a_bug() { throw std::logic_error("a bug"); }

struct Case {
  void (*happens)();
  StatusCode code;
  const char* message;
};
constexpr Case kCases[] = {
    {run_out_of_memory, StatusCode::RESOURCE_EXHAUSTED, "out of memory"},
    {have_a_bug, StatusCode::INTERNAL, "the server could not serve the"},
};

class FailureTest : public RpcFixture {
 protected:
  void TearDown() override {
    FakeTokenizer::before_encode = FakeTokenizer::before_token = nullptr;
    RpcFixture::TearDown();
  }
  void start_saying(const std::vector<int32_t>& ids) {
    start({.script = [ids](const Request&) { return FakeEngine::Play{{ids}}; }});
  }
  void expect_served() {
    const Generated served = generate(text_request("x"));
    EXPECT_TRUE(served.status.ok()) << served.status.error_message();
    EXPECT_EQ(served.text(), "abc");
    EXPECT_TRUE(eventually([&] { return core_->under_way() == 0 && engine_->running() == 0; }));
  }
};

TEST_F(FailureTest, WhilePromptsAreRead) {
  start_saying({'a', 'b', 'c'});
  for (const Case& element : kCases) {
    FakeTokenizer::before_encode = element.happens;
    const Generated failed = generate(text_request("x"));
    EXPECT_EQ(failed.status.error_code(), element.code);
    EXPECT_THAT(failed.status.error_message(), HasSubstr(element.message));
    EXPECT_EQ(failed.trailers.contains("grpc-retry-pushback-ms"),
              element.code == StatusCode::RESOURCE_EXHAUSTED);

    grpc::ClientContext context;
    v1::TokenizeRequest tokenize;
    tokenize.set_text("x");
    v1::TokenizeResponse tokens;
    EXPECT_EQ(inference_->Tokenize(&context, tokenize, &tokens).error_code(), element.code);
    FakeTokenizer::before_encode = nullptr;
    expect_served();
  }
}

TEST_F(FailureTest, WhileAnswersAreWritten) {
  start_saying({'a', 'b', 'c'});
  for (const Case& element : kCases) {
    FakeTokenizer::before_token = element.happens;
    const Generated failed = generate(text_request("x"));
    EXPECT_EQ(failed.status.error_code(), element.code);
    EXPECT_THAT(failed.status.error_message(), HasSubstr(element.message));
    FakeTokenizer::before_token = nullptr;
    expect_served();
  }
}

}  // namespace recurve::failure_test

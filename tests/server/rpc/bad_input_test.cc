#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "server/rpc/messages.h"
#include "tests/support/rpc_fixture.h"

namespace recurve::bad_input_test {

using grpc::StatusCode;
using ::testing::HasSubstr;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct BadCase {
  const char* name;
  std::function<void(v1::GenerateRequest&)> change;  // of a good request
  std::vector<std::string> words;                    // of the sentence: field, range, value
};

// All cases use one server: a refused request has no effect.
class BadInputTest : public RpcFixture, public ::testing::WithParamInterface<BadCase> {};

TEST_P(BadInputTest, IsRefusedWithASentence) {
  start();
  v1::GenerateRequest request = text_request("x");
  GetParam().change(request);
  const Generated got = generate(request);
  EXPECT_EQ(got.status.error_code(), StatusCode::INVALID_ARGUMENT);
  for (const std::string& word : GetParam().words) {
    EXPECT_THAT(got.status.error_message(), HasSubstr(word));
  }
  EXPECT_TRUE(got.messages.empty());
  EXPECT_TRUE(generate(text_request("still here")).status.ok());
}

using R = v1::GenerateRequest;

INSTANTIATE_TEST_SUITE_P(
    All, BadInputTest,
    ::testing::Values(
        BadCase{"EmptyPrompt", [](R& r) { r.set_text(""); }, {"prompt", "at least one token"}},
        BadCase{"NoPrompt", [](R& r) { r.clear_prompt(); }, {"prompt"}},
        BadCase{"NoIds", [](R& r) { r.mutable_ids(); }, {"prompt"}},
        BadCase{
            "IdNegative", [](R& r) { r.mutable_ids()->add_ids(-1); }, {"ids", "[0, 262)", "-1"}},
        BadCase{"IdBeyond", [](R& r) { r.mutable_ids()->add_ids(262); }, {"[0, 262)", "262"}},
        BadCase{"TemperatureNaN",
                [](R& r) { r.mutable_sampling()->set_temperature(kNaN); },
                {"temperature", "[0, 1000]", "nan"}},
        BadCase{"TemperatureNegative",
                [](R& r) { r.mutable_sampling()->set_temperature(-1); },
                {"temperature", "-1"}},
        BadCase{"TemperatureInfinite",
                [](R& r) { r.mutable_sampling()->set_temperature(kInf); },
                {"temperature", "inf"}},
        BadCase{"TopK", [](R& r) { r.mutable_sampling()->set_top_k(-5); }, {"top_k", "0", "-5"}},
        BadCase{"TopPZero", [](R& r) { r.mutable_sampling()->set_top_p(0); }, {"top_p", "(0, 1]"}},
        BadCase{"TopPNaN", [](R& r) { r.mutable_sampling()->set_top_p(kNaN); }, {"top_p", "nan"}},
        BadCase{"MinP", [](R& r) { r.mutable_sampling()->set_min_p(1.5f); }, {"min_p", "1.5"}},
        BadCase{"TypicalP",
                [](R& r) { r.mutable_sampling()->set_typical_p(-0.5f); },
                {"typical_p", "-0.5"}},
        BadCase{"Repetition",
                [](R& r) { r.mutable_sampling()->set_repetition_penalty(0); },
                {"repetition_penalty", "0.01"}},
        BadCase{"Presence",
                [](R& r) { r.mutable_sampling()->set_presence_penalty(3); },
                {"presence_penalty", "[-2, 2]", "3"}},
        BadCase{"Frequency",
                [](R& r) { r.mutable_sampling()->set_frequency_penalty(kNaN); },
                {"frequency_penalty"}},
        BadCase{"BiasId",
                [](R& r) { (*r.mutable_sampling()->mutable_logit_bias())[9999] = 1; },
                {"logit_bias", "9999"}},
        BadCase{"BiasValue",
                [](R& r) { (*r.mutable_sampling()->mutable_logit_bias())[1] = kNaN; },
                {"logit_bias", "nan"}},
        BadCase{"AllowedId",
                [](R& r) { r.mutable_sampling()->add_allowed_token_ids(300); },
                {"allowed_token_ids", "300"}},
        BadCase{"ConstraintWithoutForm",
                [](R& r) { r.mutable_constraint(); },
                {"constraint must have a kind"}},
        BadCase{"StopId",
                [](R& r) { r.mutable_stop()->add_stop_token_ids(-2); },
                {"stop_token_ids", "-2"}},
        BadCase{"TooManyStopIds",
                [](R& r) {
                  for (int i = 0; i < 65; ++i) r.mutable_stop()->add_stop_token_ids(i);
                },
                {"stop_token_ids", "64", "65"}},
        BadCase{"TooManyStopStrings",
                [](R& r) {
                  for (int i = 0; i < 17; ++i) r.mutable_stop()->add_stop_strings("s");
                },
                {"stop_strings", "16", "17"}},
        BadCase{"EmptyStopString",
                [](R& r) { r.mutable_stop()->add_stop_strings(""); },
                {"stop_strings", "1024"}},
        BadCase{"LongStopString",
                [](R& r) { r.mutable_stop()->add_stop_strings(std::string(1025, 's')); },
                {"stop_strings", "1024", "1025"}},
        BadCase{"MaxTokensNegative",
                [](R& r) { r.mutable_stop()->set_max_tokens(-1); },
                {"max_tokens", "-1"}},
        BadCase{"MaxTokensLarge",
                [](R& r) { r.mutable_stop()->set_max_tokens(1 << 30); },
                {"max_tokens", "1048576"}},
        BadCase{"MinOverMax",
                [](R& r) {
                  r.mutable_stop()->set_max_tokens(4);
                  r.mutable_stop()->set_min_tokens(5);
                },
                {"min_tokens", "[0, 4]", "5"}},
        BadCase{"NothingToSample",
                [](R& r) {
                  r.mutable_sampling()->add_allowed_token_ids(FakeTokenizer::kEos);
                  r.mutable_stop()->set_min_tokens(1);
                },
                {"min_tokens"}},
        BadCase{"NZero", [](R& r) { r.set_n(0); }, {"n must be in [1, 8]", "0"}},
        BadCase{"NMoreThanSlots", [](R& r) { r.set_n(9); }, {"[1, 8]", "9"}},
        BadCase{"NWithSession",
                [](R& r) {
                  r.set_n(2);
                  r.set_session("s");
                },
                {"n must be 1", "session"}},
        BadCase{"NOfNothing",
                [](R& r) {
                  r.set_n(2);
                  r.mutable_stop()->set_max_tokens(0);
                },
                {"n must be 1", "max_tokens"}},
        BadCase{"Logprobs", [](R& r) { r.set_logprobs(101); }, {"logprobs", "[0, 100]", "101"}},
        BadCase{
            "PromptLogprobs", [](R& r) { r.set_prompt_logprobs(-1); }, {"prompt_logprobs", "-1"}},
        BadCase{"SessionName", [](R& r) { r.set_session("a/b"); }, {"session", "0x2f"}},
        BadCase{"SessionNameLong",
                [](R& r) { r.set_session(std::string(129, 'a')); },
                {"session", "128", "129"}},
        BadCase{"RequestId", [](R& r) { r.set_request_id("a b"); }, {"request_id"}}),
    [](const auto& test) { return test.param.name; });

class BadMessageTest : public RpcFixture {
 protected:
  // Sends bytes to a server-streaming method; its stub would not send such a message.
  grpc::Status generate_raw(const std::string& bytes) {
    const grpc::internal::RpcMethod rpc("/recurve.v1.Inference/Generate",
                                        grpc::internal::RpcMethod::SERVER_STREAMING);
    grpc::ClientContext context;
    const std::unique_ptr<grpc::ClientReader<grpc::ByteBuffer>> reader(
        grpc::internal::ClientReaderFactory<grpc::ByteBuffer>::Create(channel_.get(), rpc, &context,
                                                                      to_buffer(bytes)));
    grpc::ByteBuffer response;
    while (reader->Read(&response)) {
    }
    return reader->Finish();
  }
};

TEST_F(BadMessageTest, AFieldThatIsNotUtf8IsNamed) {
  start();
  const grpc::Status status = generate_raw(
      "\x12\x03"
      "a\xff"
      "b");
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "text must be valid UTF-8");
  EXPECT_EQ(generate_raw("\x3a\x03\x2a\x01\xc0").error_message(),
            "stop.stop_strings must be valid UTF-8");
  const RawAnswer tokenize = raw_call(*channel_, "/recurve.v1.Inference/Tokenize", "\x0a\x01\xfe");
  EXPECT_EQ(tokenize.status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(tokenize.status.error_message(), HasSubstr("text"));
  const RawAnswer open = raw_call(*channel_, "/recurve.v1.Sessions/Open", "\x0a\x01\xfe");
  EXPECT_EQ(open.status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(generate(text_request("still here")).status.ok());
}

TEST_F(BadMessageTest, AMalformedMessageIsRefused) {
  start();
  const grpc::Status status = generate_raw(
      "\x12\x7f"
      "short");
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "the message is not a GenerateRequest");
}

// Two bytes each when sent, hundreds once parsed.
TEST_F(BadMessageTest, AMessageOfManySmallValuesIsRefusedUnparsed) {
  start();
  std::string messages;
  for (int i = 0; i < 500'000; ++i) messages += std::string("\x0a\x00", 2);
  const auto conversation = [&](size_t count) {
    const std::string content = messages.substr(0, 2 * count);
    std::string bytes = "\x62";  // field 12, a message
    for (size_t left = content.size();; left >>= 7) {
      bytes.push_back(static_cast<char>((left & 127) | (left > 127 ? 128 : 0)));
      if (left <= 127) break;
    }
    return bytes + content;
  };
  EXPECT_EQ(generate_raw(conversation(500'000)).error_message(),
            "the message must have fewer values: decoded they would take more than 11 MB");
  EXPECT_THAT(generate_raw(conversation(10)).error_message(), HasSubstr("template"));
  v1::GenerateRequest request = text_request("still here");
  for (int32_t id = 0; id < 250; ++id) (*request.mutable_sampling()->mutable_logit_bias())[id] = 1;
  EXPECT_TRUE(generate(request).status.ok());
}

TEST_F(BadMessageTest, AMessageOverTheLimitIsRefused) {
  start({}, {.rpc = {.max_message_bytes = 1000}});
  EXPECT_EQ(generate(text_request(std::string(2000, 'a'))).status.error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(generate(text_request("still here")).status.ok());
}

TEST_F(BadMessageTest, APromptOverTheLimitIsRefused) {
  start({}, {.core = {.max_prompt_tokens = 10}});
  const grpc::Status status = generate(text_request("12345678901")).status;
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("at most 10 tokens, got more"));
  EXPECT_TRUE(generate(text_request("1234567890")).status.ok());
}

TEST_F(BadMessageTest, AnEmptyPromptMayContinueASession) {
  start();
  v1::GenerateRequest request;
  request.set_session("s");
  EXPECT_TRUE(generate(request).status.ok());
  EXPECT_TRUE(engine_->last_request().prompt.ids.empty());
}

TEST_F(BadMessageTest, DetokenizeChecksIds) {
  start();
  v1::DetokenizeRequest request;
  request.add_ids('a');
  request.add_ids(262);
  v1::DetokenizeResponse response;
  grpc::ClientContext context;
  const grpc::Status status = inference_->Detokenize(&context, request, &response);
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("ids must be in [0, 262), got 262 at index 1"));
}

}  // namespace recurve::bad_input_test

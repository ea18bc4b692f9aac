// The messages of a Generate stream: first and last one, text, stops, log-probabilities.
#include <gmock/gmock.h>

#include "server/text/utf8.h"
#include "tests/support/rpc_fixture.h"

namespace recurve::stream_text_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kHello = FakeTokenizer::kWords, kWorld = kHello + 1, kXEndY = kHello + 2;
constexpr int32_t kEos = FakeTokenizer::kEos, kBos = FakeTokenizer::kBos;

class GenerateTest : public RpcFixture {
 protected:
  // Choice c of every request gets tokens[c], then EOS.
  void play(std::vector<std::vector<int32_t>> tokens, std::chrono::microseconds step = {}) {
    start({.step = step,
           .script = [tokens](const Request&) { return FakeEngine::Play{.tokens = tokens}; }});
  }

  // Guarantees of every successful stream.
  static void expect_order(const Generated& answer) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    ASSERT_GE(answer.messages.size(), 2u);
    for (size_t i = 0; i < answer.messages.size(); ++i) {
      EXPECT_EQ(answer.messages[i].has_prompt(), i == 0);
      EXPECT_EQ(answer.messages[i].has_final(), i + 1 == answer.messages.size());
      if (answer.messages[i].has_chunk()) {
        EXPECT_TRUE(is_valid_utf8(answer.messages[i].chunk().text()));
        EXPECT_GT(answer.messages[i].chunk().ByteSizeLong(), 0u);
      }
    }
  }
  Generated good(const v1::GenerateRequest& request) {
    const Generated answer = generate(request);
    expect_order(answer);
    return answer;
  }
};

TEST_F(GenerateTest, PromptInfoThenChunksThenTheFinalMessage) {
  start();
  v1::GenerateRequest request = text_request("abc");
  request.set_request_id("me");
  request.mutable_sampling()->set_seed(7);
  const Generated answer = good(request);
  EXPECT_EQ(answer.prompt().request_id(), "me");
  EXPECT_EQ(answer.prompt().model(), "fake");
  EXPECT_EQ(answer.prompt().prompt_tokens(), 4);  // with BOS
  EXPECT_EQ(answer.prompt().seed(), 7u);
  EXPECT_EQ(answer.text(), "abc");
  EXPECT_THAT(answer.ids(), ElementsAre('a', 'b', 'c', kEos));
  ASSERT_EQ(answer.final().choices_size(), 1);
  EXPECT_EQ(answer.final().choices(0).reason(), v1::FINISH_REASON_EOS);
  EXPECT_EQ(answer.final().choices(0).stop_id(), kEos);
  EXPECT_EQ(answer.final().choices(0).generated_tokens(), 4);
  EXPECT_EQ(answer.final().usage().prompt_tokens(), 4);
  EXPECT_EQ(answer.final().usage().generated_tokens(), 4);
  EXPECT_EQ(answer.final().usage().queue_seconds(), 0.25);
}

TEST_F(GenerateTest, WithoutASeedTheDrawnOneIsReturned) {
  start();
  const uint64_t first = good(text_request("a")).prompt().seed();
  EXPECT_EQ(engine_->last_request().sampling.seed, first);
  EXPECT_NE(good(text_request("a")).prompt().seed(), first);
}

TEST_F(GenerateTest, TextIsWholeCharacters) {
  const std::string text = "\u00E9\u20AC\U0001F600z";
  std::vector<std::vector<int32_t>> bytes(1);
  for (const char c : text) bytes[0].push_back(static_cast<unsigned char>(c));
  play(bytes, std::chrono::microseconds(300));
  EXPECT_EQ(good(text_request("x")).text(), text);
}

TEST_F(GenerateTest, InvalidBytesBecomeReplacementCharacters) {
  play({{0xFF, 'a', 0xE2, 0x82}});
  v1::GenerateRequest request = text_request("x");
  request.mutable_stop()->set_max_tokens(4);  // ends within a character
  const Generated answer = good(request);
  EXPECT_EQ(answer.text(), "\uFFFDa\uFFFD");
  EXPECT_EQ(answer.final().choices(0).reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(answer.final().choices(0).stop_case(), v1::GenerateFinal::ChoiceFinal::STOP_NOT_SET);
}

struct StopCase {
  std::vector<int32_t> tokens;
  std::string stop;
  std::string without, with;  // the text, by include_stop
  int64_t count;              // tokens
};
class StopStringTest : public GenerateTest, public ::testing::WithParamInterface<bool> {};

TEST_P(StopStringTest, EndsTheAnswerAtAnyTokenBorders) {
  const std::vector<StopCase> cases = {{{kHello, kWorld}, "lo wo", "hel", "hello wo", 2},
                                       {{'a', kXEndY}, "END", "ax", "axEND", 2},
                                       {{'a', 'b', 'c'}, "c", "ab", "abc", 3},
                                       {{'x', 0xC3, 0xA9, 'y'}, "\u00E9", "x", "x\u00E9", 3},
                                       {{'a', 'a', 'b', 'c'}, "ab", "a", "aab", 3}};
  std::vector<int32_t> tokens;
  start({.script = [&](const Request&) {
    std::vector<int32_t> all = tokens;
    all.resize(100000, 'z');  // the engine would go on
    return FakeEngine::Play{{all}};
  }});
  for (const StopCase& c : cases) {
    tokens = c.tokens;
    v1::GenerateRequest request = text_request("x");
    request.mutable_stop()->set_max_tokens(100000);
    request.mutable_stop()->add_stop_strings("never");
    request.mutable_stop()->add_stop_strings(c.stop);
    request.mutable_stop()->set_include_stop(GetParam());
    const Generated answer = good(request);
    EXPECT_EQ(answer.text(), GetParam() ? c.with : c.without);
    const v1::GenerateFinal::ChoiceFinal& final = answer.final().choices(0);
    EXPECT_EQ(final.reason(), v1::FINISH_REASON_STOP_STRING);
    EXPECT_EQ(final.stop_string(), c.stop);
    EXPECT_EQ(final.generated_tokens(), c.count);
    EXPECT_EQ(answer.final().usage().generated_tokens(), c.count);
    EXPECT_EQ(static_cast<int64_t>(answer.ids().size()), c.count);
  }
}
INSTANTIATE_TEST_SUITE_P(IncludeStop, StopStringTest, ::testing::Bool());

TEST_F(GenerateTest, APartialStopStringIsTextInTheEnd) {
  play({{kHello}});
  v1::GenerateRequest request = text_request("x");
  request.mutable_stop()->add_stop_strings("lo wo");
  const Generated answer = good(request);
  EXPECT_EQ(answer.text(), "hello");
  EXPECT_EQ(answer.final().choices(0).reason(), v1::FINISH_REASON_EOS);
}

TEST_P(StopStringTest, StopIds) {
  play({{'a', kHello, 'b'}});
  v1::GenerateRequest request = text_request("x");
  request.mutable_stop()->add_stop_token_ids(kHello);
  request.mutable_stop()->set_include_stop(GetParam());
  const Generated answer = good(request);
  EXPECT_EQ(answer.text(), GetParam() ? "ahello" : "a");
  EXPECT_THAT(answer.ids(), ElementsAre('a', kHello));
  EXPECT_EQ(answer.final().choices(0).reason(), v1::FINISH_REASON_STOP_ID);
  EXPECT_EQ(answer.final().choices(0).stop_id(), kHello);
}

TEST_F(GenerateTest, WithASessionAStopStringLeavesItAtExactlyOneToken) {
  std::vector<int32_t> tokens = {'a', kHello, kWorld};
  tokens.resize(1000, 'z');
  play({tokens});
  v1::GenerateRequest request = text_request("x");
  request.set_session("s");
  request.mutable_stop()->set_max_tokens(1000);
  request.mutable_stop()->add_stop_strings("lo wo");
  EXPECT_EQ(good(request).text(), "ahel");
  EXPECT_EQ(engine_->last_request().session, "s");
  EXPECT_TRUE(engine_->last_request().wait_for_acknowledgement);
  EXPECT_EQ(engine_->generated(), 3);
  EXPECT_EQ(engine_->absorbed(), 2);  // the last one is pending
  request.mutable_stop()->clear_stop_strings();
  good(request);
  EXPECT_FALSE(engine_->last_request().wait_for_acknowledgement);
}

TEST_F(GenerateTest, SeveralChoices) {
  play({{'a', 'b'}, {kHello, kXEndY, 'q', 'q', 'q'}});
  v1::GenerateRequest request = text_request("x");
  request.set_n(2);
  request.mutable_stop()->add_stop_strings("END");
  const Generated answer = good(request);
  EXPECT_EQ(answer.text(0), "ab");
  EXPECT_EQ(answer.text(1), "hellox");
  ASSERT_EQ(answer.final().choices_size(), 2);
  EXPECT_EQ(answer.final().choices(0).reason(), v1::FINISH_REASON_EOS);
  EXPECT_EQ(answer.final().choices(1).reason(), v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(answer.final().choices(1).stop_string(), "END");
  EXPECT_EQ(answer.final().usage().generated_tokens(), 3 + 2);
}

TEST_F(GenerateTest, LogProbabilities) {
  play({{kHello, 0xE2}});
  v1::GenerateRequest request = text_request("ab");
  request.set_logprobs(2);
  request.set_prompt_logprobs(0);
  const Generated answer = good(request);
  ASSERT_TRUE(answer.messages[1].has_prompt_logprobs());
  const v1::PromptLogprobs& prompt = answer.messages[1].prompt_logprobs();
  ASSERT_EQ(prompt.tokens_size(), 2);  // behind BOS
  EXPECT_EQ(prompt.tokens(0).id(), 'a');
  EXPECT_EQ(prompt.tokens(1).token(), "b");
  EXPECT_EQ(prompt.tokens(1).top_size(), 0);
  std::vector<v1::TokenLogprob> tokens;
  for (const auto& m : answer.messages) {
    EXPECT_EQ(m.chunk().logprobs_size(), m.chunk().ids_size());
    for (const auto& t : m.chunk().logprobs()) tokens.push_back(t);
  }
  ASSERT_EQ(tokens.size(), 3u);
  EXPECT_EQ(tokens[0].id(), kHello);
  EXPECT_EQ(tokens[0].logprob(), -1);
  EXPECT_EQ(tokens[0].token(), "hello");
  ASSERT_EQ(tokens[0].top_size(), 2);
  EXPECT_EQ(tokens[0].top(1).logprob(), -2);
  EXPECT_EQ(tokens[0].top(1).token(), "hello");
  EXPECT_EQ(tokens[1].token(), "\xE2");  // half a character, as bytes
  EXPECT_EQ(tokens[2].token(), "");      // a control token
}

TEST_F(GenerateTest, ALongListOfLogProbabilitiesIsSplit) {
  start();
  v1::GenerateRequest request;
  for (int i = 0; i < 20000; ++i) request.mutable_ids()->add_ids(i % 256);
  request.set_prompt_logprobs(20);
  request.mutable_stop()->set_max_tokens(0);
  const Generated answer = good(request);
  int next = 1;  // no BOS before ids: nothing predicts the first
  for (const auto& m : answer.messages) {
    EXPECT_LT(m.ByteSizeLong(), 1u << 20);
    for (const auto& t : m.prompt_logprobs().tokens()) EXPECT_EQ(t.id(), next++ % 256);
  }
  EXPECT_EQ(next, 20000);
  EXPECT_GT(answer.messages.size(), 10u);
  EXPECT_EQ(answer.final().choices(0).reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_THAT(answer.ids(), IsEmpty());
}

TEST_F(GenerateTest, BosByTheRulesOfTheModel) {
  start();
  const auto bos = [&](const v1::GenerateRequest& request) {
    good(request);
    return engine_->last_request().prompt.ids.front() == kBos;
  };
  v1::GenerateRequest ids, parsed = text_request("<s>a"), plain = text_request("a");
  ids.mutable_ids()->add_ids('a');
  EXPECT_TRUE(bos(plain));
  EXPECT_TRUE(bos(parsed));  // the name of a control token is plain text
  EXPECT_EQ(engine_->last_request().prompt.ids.size(), 1 + 4u);
  EXPECT_FALSE(bos(ids));
  parsed.set_parse_special(true);
  EXPECT_TRUE(bos(parsed));  // it is there already
  EXPECT_THAT(engine_->last_request().prompt.ids, ElementsAre(kBos, 'a'));
  plain.set_add_special_tokens(false);
  EXPECT_FALSE(bos(plain));
  TearDown();
  ServingInfo info = fake_info();
  info.tokens.force_bos = true;
  start({}, {}, 64, info);
  EXPECT_TRUE(bos(ids));
}

}  // namespace recurve::stream_text_test

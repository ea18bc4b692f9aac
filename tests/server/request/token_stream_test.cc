#include "server/request/token_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace recurve::token_stream_test {

SampledToken token(int32_t id) {
  SampledToken token;
  token.id = id;
  return token;
}

TEST(TokenStream, GathersUntilTaken) {
  TokenStream stream;
  EXPECT_TRUE(stream.take().empty());
  stream.accept({.prompt_tokens = 3, .session_position = 5});
  stream.push_prompt({token(1), token(2)});
  stream.push_prompt({token(3)});
  stream.push(token(4));
  TokenStream::Gathered first = stream.take();
  ASSERT_TRUE(first.accepted);
  EXPECT_EQ(first.accepted->prompt_tokens, 3);
  EXPECT_EQ(first.accepted->session_position, 5);
  ASSERT_EQ(first.prompt.size(), 3u);
  EXPECT_EQ(first.prompt[2].id, 3);
  ASSERT_EQ(first.tokens.size(), 1u);
  EXPECT_FALSE(first.ending);

  stream.push(token(5));
  stream.finish({.reason = EndReason::kEos, .stop_id = 5});
  const TokenStream::Gathered rest = stream.take();
  EXPECT_FALSE(rest.accepted);
  ASSERT_EQ(rest.tokens.size(), 1u);
  EXPECT_EQ(rest.tokens[0].id, 5);
  ASSERT_TRUE(rest.ending);
  EXPECT_EQ(rest.ending->stop_id, 5);
  EXPECT_TRUE(stream.take().empty());
}

TEST(TokenStream, WakesAfterEachCallOfTheEngine) {
  TokenStream stream;
  int woken = 0;
  stream.on_ready([&woken] { ++woken; });
  stream.accept({});
  stream.push_prompt({token(1)});
  stream.push(token(2));
  stream.push_last(token(3), {.reason = EndReason::kLength});
  EXPECT_EQ(woken, 4);
  stream.cancel();
  stream.acknowledge(1);
  stream.stop_after(1);
  stream.take();
  EXPECT_EQ(woken, 4) << "the frontend does not wake itself";
}

TEST(TokenStream, SignalsAreWhatTheFrontendSaidLast) {
  TokenStream stream;
  EXPECT_FALSE(stream.signals().cancelled);
  EXPECT_EQ(stream.signals().acknowledged, 0);
  EXPECT_FALSE(stream.signals().stop_after);
  stream.acknowledge(2);
  stream.acknowledge(3);
  stream.stop_after(3);
  stream.cancel();
  const TokenStream::ClientSignals signals = stream.signals();
  EXPECT_TRUE(signals.cancelled);
  EXPECT_EQ(signals.acknowledged, 3);
  EXPECT_EQ(signals.stop_after, 3);
}

// However the two sides run, tokens come in order and the last one comes with the ending.
TEST(TokenStream, TheLastTokenIsSeenAsTheLast) {
  for (int round = 0; round < 200; ++round) {
    TokenStream stream;
    std::thread engine([&stream] {
      for (int id = 0; id < 20; ++id) stream.push(token(id));
      stream.push_last(token(20), {.reason = EndReason::kLength});
    });
    int next = 0;
    for (bool ended = false; !ended;) {
      const TokenStream::Gathered news = stream.take();
      for (const SampledToken& sampled : news.tokens) EXPECT_EQ(sampled.id, next++);
      ended = news.ending.has_value();
      EXPECT_EQ(ended, next == 21);
    }
    engine.join();
  }
}

SampledToken with_candidates(size_t candidates) {
  SampledToken token{.id = 1};
  token.top.resize(candidates);
  return token;
}

TEST(TokenStream, IsFullUntilSomethingIsTakenAndSaysSo) {
  TokenStream stream;
  const size_t bytes = sizeof(SampledToken) + 100 * sizeof(TokenLogprob);
  const size_t fitting = (TokenStream::kMostUnreadBytes - 1) / bytes;
  for (size_t i = 0; i < fitting; ++i) stream.push(with_candidates(100));
  EXPECT_FALSE(stream.signals().full);
  EXPECT_FALSE(stream.take().was_full) << "no request waits";
  for (size_t i = 0; i < fitting; ++i) stream.push(with_candidates(100));
  stream.push_prompt({with_candidates(100)});
  EXPECT_TRUE(stream.signals().full);
  const TokenStream::Gathered all = stream.take();
  EXPECT_TRUE(all.was_full);
  EXPECT_EQ(all.tokens.size(), fitting);
  EXPECT_FALSE(stream.signals().full);
  EXPECT_FALSE(stream.take().was_full);
}

TEST(TokenStream, KnowsThatItHasStalled) {
  TokenStream stalled, ended;
  EXPECT_FALSE(stalled.stalled());
  stalled.finish({.reason = EndReason::kStalled});
  ended.finish({.reason = EndReason::kLength});
  EXPECT_TRUE(stalled.stalled());
  EXPECT_FALSE(ended.stalled());
}

}  // namespace recurve::token_stream_test

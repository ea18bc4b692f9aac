// The tokens of a session that it can absorb again.
#include "server/session/token_log.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace recurve::testing::token_log_test {

using Form = TokenLog::Form;

TEST(TokenLog, HasTheLastTokensWhateverIsCutOff) {
  std::mt19937 random(7);
  for (const int64_t most : {1, 5, 64, 100, 1000}) {
    TokenLog log(most);
    std::deque<std::pair<int32_t, Form>> want;
    int64_t end = 0;
    for (int round = 0; round < 300; ++round) {
      for (uint32_t count = random() % 40; count > 0; --count, ++end) {
        const auto id = static_cast<int32_t>(random() % (1 << 30));
        const auto form = static_cast<Form>(random() % 4);
        log.add(id, form);
        want.emplace_back(id, form);
        if (want.size() > static_cast<size_t>(most)) want.pop_front();
      }
      const TokenLog copy = log;
      if (random() % 3 == 0) {
        const auto cut = static_cast<int64_t>(random() % (want.size() + 1));
        end -= cut;
        log = log.until(end);
        want.resize(want.size() - static_cast<size_t>(cut));
      }
      EXPECT_GE(copy.end(), log.end());
      ASSERT_EQ(log.end(), end);
      ASSERT_EQ(log.begin(), end - static_cast<int64_t>(want.size()));
      for (size_t i = 0; i < want.size(); ++i) {
        const TokenLog::Entry entry = log.at(log.begin() + static_cast<int64_t>(i));
        ASSERT_EQ(std::pair(entry.id, entry.form), want[i]);
      }
      ASSERT_EQ(log.next_digest(log.first_digest(), log.begin(), log.end()), log.digest());
    }
  }
}

// As it is read again after a restart.
TEST(TokenLog, IsLoadedWithItsOwnTokensAlone) {
  TokenLog log(10);
  for (int32_t id = 0; id < 25; ++id) log.add(id, id % 5 == 0 ? Form::kFirst : Form::kStep);
  const auto stored = [&] {
    return TokenLog::stored(10, log.begin(), log.end(), log.first_digest(), log.digest());
  };
  std::vector<uint32_t> words = log.words(log.begin(), log.end());
  TokenLog again = stored();
  EXPECT_FALSE(again.is_loaded());
  EXPECT_EQ(again.digest(), log.digest());
  EXPECT_TRUE(again.load(words));
  for (int32_t id = 25; id < 45; ++id) {
    for (TokenLog* one : {&log, &again}) one->add(id, Form::kPrompt);
    ASSERT_EQ(again.digest(), log.digest());
    ASSERT_EQ(again.words(again.begin(), again.end()), log.words(log.begin(), log.end()));
    ASSERT_EQ(again.until(again.end() - 3).digest(), log.until(log.end() - 3).digest());
  }
  for (size_t changed = 0; changed < 10; ++changed) {
    std::vector<uint32_t> others = words;
    others[changed] ^= 1;
    TokenLog other = TokenLog::stored(10, 15, 25, log.first_digest(), log.digest());
    EXPECT_FALSE(other.load(others));
    EXPECT_FALSE(other.is_loaded());
  }
  EXPECT_TRUE(TokenLog::stored(10, 7, 7, 1, 1).is_loaded());
}

TEST(TokenLog, TellsTextsApart) {
  const auto of = [](std::initializer_list<std::pair<int32_t, Form>> tokens) {
    TokenLog log(3);
    for (const auto& [id, form] : tokens) log.add(id, form);
    return log;
  };
  const TokenLog text = of({{1, Form::kFirst}, {2, Form::kPrompt}, {3, Form::kStep}});
  EXPECT_EQ(text.digest(), of({{1, Form::kFirst}, {2, Form::kPrompt}, {3, Form::kStep}}).digest());
  EXPECT_NE(text.digest(), of({{1, Form::kFirst}, {2, Form::kFirst}, {3, Form::kStep}}).digest());
  EXPECT_NE(text.digest(), of({{1, Form::kFirst}, {3, Form::kStep}, {2, Form::kPrompt}}).digest());
  EXPECT_NE(TokenLog::unknown(3, 5).digest(), TokenLog::unknown(3, 5).digest());
  EXPECT_FALSE(TokenLog::unknown(3, 5).has_all());
  EXPECT_TRUE(TokenLog::unknown(3, 0).has_all());
  TokenLog changed = text;
  changed.add(9, Form::kStep);
  EXPECT_FALSE(changed.has_all());
  EXPECT_EQ(text.at(2).id, 3) << "a copy does not change";
  EXPECT_EQ(text.at(0).id, 1);
}

}  // namespace recurve::testing::token_log_test

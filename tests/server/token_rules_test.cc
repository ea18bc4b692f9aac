#include "server/token_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "server/text/id_tokenizer.h"

namespace recurve::token_rules_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Ten tokens, of which some are control tokens; what its files say about BOS and EOS is given.
class TenTokens final : public Tokenizer {
 public:
  TenTokens(std::set<int32_t> special, std::optional<int32_t> bos, std::optional<int32_t> eos)
      : special_(std::move(special)), bos_(bos), eos_(eos) {}

  std::unique_ptr<TextEncoder> encoder(SpecialTokens, TextPosition,
                                       const WorkLimits&) const override {
    return {};
  }
  int32_t size() const override { return 10; }
  std::string_view token_bytes(int32_t id) const override {
    return id >= 0 && id < 10 && !is_special(id) ? "!" : "";
  }
  bool is_special(int32_t id) const override { return special_.contains(id); }
  std::optional<int32_t> id_of(std::string_view) const override { return {}; }
  std::optional<int32_t> bos_id() const override { return bos_; }
  std::optional<int32_t> eos_id() const override { return eos_; }
  std::string description() const override { return "ten tokens"; }

 private:
  const std::set<int32_t> special_;
  const std::optional<int32_t> bos_, eos_;
};

ModelInfo config(std::optional<int32_t> bos, std::vector<int32_t> eos, bool force_bos = true) {
  ModelInfo info;
  info.bos = bos;
  info.eos = std::move(eos);
  info.force_bos = force_bos;
  return info;
}

TEST(TokenRules, TheConfigsControlTokensCount) {
  const TokenRules rules = resolve_token_rules(config(1, {2, 3}), TenTokens({0, 1, 2, 3}, 0, 0));
  EXPECT_EQ(rules.bos, 1);
  EXPECT_THAT(rules.eos, ElementsAre(2, 3));
  EXPECT_TRUE(rules.force_bos);
}

// A checkpoint that is served for ids alone ends where its config says.
TEST(TokenRules, WithoutATokenizerTheConfigCounts) {
  const TokenRules rules = resolve_token_rules(config(1, {2}), IdTokenizer(10));
  EXPECT_EQ(rules.bos, 1);
  EXPECT_THAT(rules.eos, ElementsAre(2));
}

// xLSTM-7b: config.json says EOS is 2, which is "!"; the tokenizer's is 0.
TEST(TokenRules, AnEosThatIsAnOrdinaryTokenGivesWayToTheTokenizers) {
  const TokenRules rules = resolve_token_rules(config(0, {2}), TenTokens({0, 1}, 0, 0));
  EXPECT_EQ(rules.bos, 0);
  EXPECT_THAT(rules.eos, ElementsAre(0));
}

TEST(TokenRules, OfSeveralEosOnlyTheWrongOnesGo) {
  EXPECT_THAT(resolve_token_rules(config(0, {2, 5, 1}), TenTokens({0, 1, 2}, 0, 0)).eos,
              ElementsAre(2, 1));
}

TEST(TokenRules, IdsNobodyHasAreIgnored) {
  const TokenRules rules =
      resolve_token_rules(config(1 << 30, {-1, 10, 50277}), TenTokens({0, 1}, 1, 0));
  EXPECT_EQ(rules.bos, 1);
  EXPECT_THAT(rules.eos, ElementsAre(0));
}

TEST(TokenRules, WithoutAnEosTheMarkBetweenDocumentsEndsAText) {
  EXPECT_THAT(resolve_token_rules(config(0, {}), TenTokens({0}, {}, {})).eos, ElementsAre(0));
  EXPECT_THAT(resolve_token_rules(config({}, {7}), TenTokens({0}, 0, {})).eos, ElementsAre(0));
}

TEST(TokenRules, NothingIsInventedWhereNobodyKnows) {
  const TokenRules rules = resolve_token_rules(config({}, {}), TenTokens({}, {}, {}));
  EXPECT_EQ(rules.bos, std::nullopt);
  EXPECT_THAT(rules.eos, IsEmpty());
  EXPECT_FALSE(rules.force_bos) << "there is none to force";
}

TEST(TokenRules, AModelThatDoesWithoutBosGetsNone) {
  const TokenRules rules = resolve_token_rules(config(0, {0}, false), TenTokens({0}, 0, 0));
  EXPECT_EQ(rules.bos, std::nullopt);
  EXPECT_FALSE(rules.force_bos);
  EXPECT_THAT(rules.eos, ElementsAre(0));
}

}  // namespace recurve::token_rules_test

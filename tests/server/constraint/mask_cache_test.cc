// Masks that are kept by their place are those that would be worked out there.
#include "server/constraint/mask_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/server/constraint/byte_vocabulary.h"
#include "tests/support/amount.h"

namespace recurve::mask_cache_test {
namespace {

using Form = ConstraintText::Form;
using Mask = std::vector<uint32_t>;
using testing::byte_vocabulary;

TEST(MaskCache, KeepsWhatWasUsedLastAsFarAsItFits) {
  MaskCache cache(4096);
  const Mask mask(64, 7);  // 256 bytes, plus the entry
  const auto is_there = [&](int place, size_t words = 64) {
    Mask found(words);
    return cache.find(std::to_string(place), 1, found) && found == mask;
  };
  for (int place = 0; place < 100; ++place) {
    cache.put(std::to_string(place), 1, mask);
    EXPECT_LE(cache.bytes(), 4096u);
    EXPECT_TRUE(is_there(place));
    EXPECT_TRUE(is_there(0)) << "it is used again and again";
  }
  EXPECT_TRUE(is_there(98));
  EXPECT_FALSE(is_there(50));
  EXPECT_FALSE(is_there(98, 65)) << "it is of another vocabulary";
  const size_t before = cache.bytes();
  cache.put("98", 1, mask);  // two answers were there at a time
  EXPECT_EQ(cache.bytes(), before);
}

TEST(MaskCache, OfNoBytesKeepsNothing) {
  MaskCache cache(0);
  cache.put("a", 1, Mask(64));
  Mask found(64);
  EXPECT_FALSE(cache.find("a", 1, found));
  EXPECT_EQ(cache.bytes(), 0u);
}

TEST(MaskCache, AClientsMasksStayWhateverOthersAskFor) {
  MaskCache cache(65536);
  const Mask mask(64, 7);
  Mask found(64);
  cache.put("honest", 1, mask);
  for (int place = 0; place < 1000; ++place) cache.put(std::to_string(place), 2, mask);
  EXPECT_TRUE(cache.find("honest", 1, found));
  EXPECT_TRUE(cache.find("999", 2, found));
  EXPECT_FALSE(cache.find("0", 2, found));
  EXPECT_LE(cache.bytes(), 65536u);
}

class KeptMasks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
  }
};

// What is different of one place and another, one constraint each: counts, what is around, which
// part of a character, an end that is near, more than one way to read a text.
std::vector<ConstraintText> texts() {
  return {
      {Form::kJson, ""},
      {Form::kJsonSchema, R"({"type":"string","maxLength":9})"},
      {Form::kJsonSchema, R"({"type":"array","items":{"type":"string","maxLength":300}})"},
      {Form::kJsonSchema,
       R"({"type":"array","items":{"enum":[true,"a",null]},"minItems":2,"maxItems":200})"},
      {Form::kJsonSchema,
       R"({"$ref":"#/$defs/t","$defs":{"t":{"anyOf":[{"type":"null"},{"type":"array","items":)"
       R"({"$ref":"#/$defs/t"}},{"type":"object","properties":{"a":{"$ref":"#/$defs/t"},"b":)"
       R"({"type":"integer"}}}]}}})"},
      {Form::kRegex, "(a|aa)+[a-c\u20ac]{2,140}(b|bb){3,60}1?"},
      {Form::kGrammar, "root ::= \"a\" root \"a\" | \"[\" root \"]\" | [0-9]{1,150} | \"\""},
      {Form::kGrammar, "root ::= x x \"name\"?\nx ::= \"a\" | x \"b\" | \"aa\" x"},
      {Form::kChoice, R"(["true","truetrue","name","\u20ac20"])"},
      // What others of these have, with something else behind it, or within it.
      {Form::kJsonSchema, R"({"type":"array","items":{"type":"string","maxLength":9}})"},
      {Form::kJsonSchema,
       R"({"type":"object","properties":{"a":{"type":"string","maxLength":9}},"required":["a"]})"},
      {Form::kJsonSchema,
       R"({"type":"array","items":{"enum":[true,"a",null]},"minItems":2,"maxItems":199})"},
      {Form::kRegex, "(a|aa)+[a-c\u20ac]{2,140}(b|bb){3,60}2"},
      {Form::kGrammar, "root ::= x x \"named\"?\nx ::= \"a\" | x \"b\" | \"aa\" x"},
      {Form::kGrammar, "root ::= x x \"name\"?\nx ::= \"a\" | x \"b\" | \"aa\" y\ny ::= \"b\""},
  };
}

TEST_F(KeptMasks, AreThoseThatWouldBeWorkedOut) {
  const auto keeps = make_constraint_library(byte_vocabulary());
  const auto keeps_none = make_constraint_library(byte_vocabulary(), {.masks = 0, .rules = 0});
  for (const ConstraintText& text : texts()) {
    const auto constraint = keeps->compile(text, {}), anew = keeps_none->compile(text, {});
    std::mt19937 random(1);
    for (int answer = 0; answer < (testing::kQuick ? 10 : 40); ++answer) {
      const auto matcher = constraint->begin(), other = anew->begin();
      Mask mask((byte_vocabulary().size() + 31) / 32), worked_out(mask);
      std::string said;
      for (int token = 0; token < 80; ++token) {
        matcher->fill(mask);
        other->fill(worked_out);
        ASSERT_EQ(mask, worked_out) << text.text << "\nbehind " << said;
        ASSERT_EQ(matcher->may_end(), other->may_end()) << text.text << "\nbehind " << said;
        const std::vector<int32_t> ids = testing::ids_of(mask);
        if (ids.empty()) break;
        const int32_t id = ids[random() % ids.size()];
        ASSERT_TRUE(matcher->accept(id) && other->accept(id));
        said += byte_vocabulary()[static_cast<size_t>(id)];
      }
    }
  }
}

TEST_F(KeptMasks, TextsThatDifferComeToOnePlace) {
  const auto library = make_constraint_library(byte_vocabulary());
  const auto bytes_after = [&](const Constraint& constraint, std::string_view text) {
    const auto matcher = constraint.begin();
    Mask mask((byte_vocabulary().size() + 31) / 32);
    for (const char byte : text) {
      matcher->fill(mask);
      EXPECT_TRUE(matcher->accept(static_cast<unsigned char>(byte) + 1)) << text;
    }
    matcher->fill(mask);
    return library->cached_bytes().masks;
  };
  const auto person = library->compile(
      {Form::kJsonSchema,
       R"({"type":"object","properties":{"name":{"type":"string","maxLength":30},"tags":)"
       R"({"type":"array","items":{"type":"string"}}},"required":["name","tags"]})"},
      {});
  const size_t first = bytes_after(*person, R"({"name": "Ada", "tags": ["a", "b"]})");
  EXPECT_GT(first, 0u);
  EXPECT_EQ(bytes_after(*person, R"({"name": "Eve", "tags": ["c", "other", "c", "x"]})"), first);
  EXPECT_GT(bytes_after(*person, R"({"name": "Augusta", "tags": []})"), first) << "a longer name";
  const auto other = library->compile({Form::kJsonSchema, R"({"type":"string"})"}, {});
  const size_t before = library->cached_bytes().masks;
  EXPECT_GT(bytes_after(*other, R"("a")"), before) << "each constraint has its own entries";
}

}  // namespace
}  // namespace recurve::mask_cache_test

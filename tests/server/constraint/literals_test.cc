// What a constraint names as it is, is what the answer is: however it is escaped on its way.
#include "tests/server/constraint/literals.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/server/constraint/with_library.h"

namespace recurve::literals_test {
namespace {

using testing::difference;
using testing::Literal;
using testing::literals_of;
using testing::takes;

class LiteralsTest : public testing::WithConstraintLibrary {
 protected:
  static void expect_round_trips(const std::string& text) {
    for (const Literal& literal : literals_of(text)) {
      EXPECT_EQ(difference(literal, *library().compile(literal.constraint, {})), "");
    }
  }
};

TEST_F(LiteralsTest, AreAnsweredAsTheyAreWritten) {
  for (const char* text : {"\nfoo",
                           "\x01"
                           "0",
                           "\x1f"
                           "abc",
                           "\x7f"
                           "e",
                           "\r\n",
                           "a\tb",
                           "\"",
                           "\\",
                           "\\n",
                           "\\x41",
                           "\\u0041",
                           "'",
                           "?",
                           "/",
                           "^",
                           "^a",
                           "-",
                           "]",
                           "[",
                           "[a]",
                           "a-z",
                           "{}",
                           "(|)*",
                           "#",
                           "\xc2\x85"
                           "0",
                           "\xe2\x80\xa8",
                           "\xc3\xa9",
                           "\xf0\x9f\x98\x80"
                           "f",
                           " ",
                           "root ::= \"a\""}) {
    SCOPED_TRACE(text);
    expect_round_trips(text);
  }
  expect_round_trips(
      std::string("a\0"
                  "1",
                  3));
}

TEST_F(LiteralsTest, OfAnyCharactersAreAnsweredAsTheyAreWritten) {
  std::mt19937 random(20261128);
  const std::vector<std::string> pieces = {std::string(1, '\0'),
                                           "\x01",
                                           "\b",
                                           "\t",
                                           "\n",
                                           "\v",
                                           "\f",
                                           "\r",
                                           "\x1b",
                                           "\x1f",
                                           " ",
                                           "\"",
                                           "'",
                                           "\\",
                                           "/",
                                           "?",
                                           "^",
                                           "-",
                                           "]",
                                           "[",
                                           "{",
                                           "}",
                                           "(",
                                           ")",
                                           "|",
                                           "*",
                                           "+",
                                           ".",
                                           "$",
                                           "#",
                                           "0",
                                           "7",
                                           "a",
                                           "b",
                                           "e",
                                           "f",
                                           "n",
                                           "u",
                                           "x",
                                           "A",
                                           "F",
                                           "\x7f",
                                           "\xc2\x80",
                                           "\xc2\x85",
                                           "\xc2\xa0",
                                           "\xc3\xa9",
                                           "\xe2\x80\xa8",
                                           "\xef\xbf\xbf",
                                           "\xf0\x9f\x98\x80",
                                           "\xf4\x8f\xbf\xbf"};
  for (int i = 0; i < 150; ++i) {
    std::string text;
    for (size_t n = 1 + random() % 6; n > 0; --n) text += pieces[random() % pieces.size()];
    SCOPED_TRACE(nlohmann::json(text).dump());
    expect_round_trips(text);
  }
}

// A class names its characters as a literal does.
TEST_F(LiteralsTest, ClassesHaveTheCharactersThatTheyName) {
  const auto is_in = [](const std::string& regex, const std::string& character) {
    return takes(*library().compile({ConstraintText::Form::kRegex, regex}, {}), character);
  };
  const std::string plain =
      "^-]\\[\"'?/.$*+(){}|\n\r\t\x01\x7f"
      "0afux ";
  for (const char one : plain) {
    for (const char* other : {"0", "f", "\xc3\xa9"}) {
      const std::string name = testing::escaped_for_regex(std::string(1, one));
      const std::string regex = "[" + name + other + "]";
      for (const char c : plain) {
        EXPECT_EQ(is_in(regex, std::string(1, c)), c == one || std::string(1, c) == other)
            << regex << " and " << static_cast<int>(c);
        EXPECT_NE(is_in("[^" + name + other + "]", std::string(1, c)),
                  c == one || std::string(1, c) == other)
            << regex << " negated, and " << static_cast<int>(c);
      }
    }
  }
}

TEST_F(LiteralsTest, NumbersThatTheLibraryWouldWriteOtherwiseAreRefused) {
  const auto of = [](const std::string& number) {
    return testing::only_answer(
        *library().compile({ConstraintText::Form::kJsonSchema, R"({"const":[)" + number + "]}"},
                           {}),
        64);
  };
  for (const char* number : {"0", "-1", "9007199254740993", "-9223372036854775808", "0.5"}) {
    EXPECT_EQ(of(number), "[" + std::string(number) + "]");
  }
  for (const char* number : {"9223372036854775808", "123456789012345678901234567890", "-1e300"}) {
    EXPECT_THROW(of(number), ConstraintRefused) << number;
  }
}

}  // namespace
}  // namespace recurve::literals_test

#include "server/text/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace recurve::utf8_test {

const std::string kR(kReplacementCharacter);

TEST(Utf8, Valid) {
  for (const char* text : {"", "plain", "caf\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\xA6\x99", "\x7F",
                           "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                           "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(is_valid_utf8(text)) << text;
    EXPECT_EQ(to_valid_utf8(text), text);
  }
  EXPECT_TRUE(is_valid_utf8(std::string_view("\0", 1)));
}

// Bytes and what bytes.decode(errors="replace") of Python 3.11 gives.
struct Invalid {
  std::string bytes;
  std::string replaced;
};

const std::vector<Invalid>& invalid() {
  static const std::vector<Invalid> cases = {
      {"\x80", kR},
      {"\xBF\xBF", kR + kR},
      {"\xC0\x80", kR + kR},                    // overlong
      {"\xC1\xBF", kR + kR},                    // overlong
      {"\xE0\x80\x80", kR + kR + kR},           // overlong
      {"\xE0\x9F\xBF", kR + kR + kR},           // overlong
      {"\xF0\x8F\xBF\xBF", kR + kR + kR + kR},  // overlong
      {"\xED\xA0\x80", kR + kR + kR},           // surrogate D800
      {"\xED\xBF\xBF", kR + kR + kR},           // surrogate DFFF
      {"\xF4\x90\x80\x80", kR + kR + kR + kR},  // 110000
      {"\xF5\x80\x80\x80", kR + kR + kR + kR},
      {"\xFE\xFF", kR + kR},
      {"\xC3", kR},          // cut off
      {"\xE2\x82", kR},      // cut off
      {"\xF0\x9F\xA6", kR},  // cut off
      {"\xF0\x9F", kR},
      {"\xC3z", kR + "z"},
      {"\xE2\x82z", kR + "z"},
      {"\xF0\x9F\xA6z", kR + "z"},
      {"\xE2\x82\xE2\x82\xAC", kR + "\xE2\x82\xAC"},
      {"\xC3\xC3\xA9", kR + "\xC3\xA9"},
      {"\xF0\x9F\xC3\xA9", kR + "\xC3\xA9"},
      {"a\xFF"
       "b",
       "a" + kR + "b"},
      {"\xE0\xE0\xA0\x80", kR + "\xE0\xA0\x80"},
      {"\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64",  // Unicode 15, table 3-8
       "a" + kR + kR + kR + "b" + kR + "c" + kR + kR + "d"},
  };
  return cases;
}

TEST(Utf8, Invalid) {
  for (const Invalid& c : invalid()) {
    EXPECT_FALSE(is_valid_utf8(c.bytes)) << ::testing::PrintToString(c.bytes);
    EXPECT_EQ(to_valid_utf8(c.bytes), c.replaced) << ::testing::PrintToString(c.bytes);
  }
}

// What is emitted never depends on where the bytes are cut, and is always whole characters.
TEST(Utf8, EveryCut) {
  std::vector<Invalid> cases = invalid();
  const std::string mixed = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\xA6\x99z";
  cases.push_back({mixed, mixed});
  for (const Invalid& c : cases) {
    for (size_t i = 0; i <= c.bytes.size(); ++i) {
      for (size_t j = i; j <= c.bytes.size(); ++j) {
        Utf8Assembler assembler;
        std::string out;
        for (const auto& part :
             {c.bytes.substr(0, i), c.bytes.substr(i, j - i), c.bytes.substr(j)}) {
          assembler.push(part, out);
          EXPECT_TRUE(is_valid_utf8(out));
        }
        assembler.finish(out);
        EXPECT_EQ(out, c.replaced);
        EXPECT_TRUE(assembler.empty());
      }
    }
  }
}

TEST(Utf8, ReplacedAsSoonAsCertain) {
  Utf8Assembler assembler;
  std::string out;
  assembler.push("\xE2\x82", out);
  EXPECT_EQ(out, "");
  assembler.push("x", out);
  EXPECT_EQ(out, kR + "x");
  assembler.push("\xC0", out);  // can begin nothing
  EXPECT_EQ(out, kR + "x" + kR);
  assembler.push("\xED", out);
  assembler.push("\xA0", out);  // ED A0 begins a surrogate: both are wrong now
  EXPECT_EQ(out, kR + "x" + kR + kR + kR);
}

}  // namespace recurve::utf8_test

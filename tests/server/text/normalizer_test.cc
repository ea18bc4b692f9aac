#include "server/text/normalizers/normalizer.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <random>

namespace recurve::normalizer_test {

// utf8proc's own function for whole strings, which orders marks itself.
std::string library(const std::string& text, NormalForm form) {
  int options = UTF8PROC_STABLE;
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  options |= compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &out,
                                             static_cast<utf8proc_option_t>(options));
  EXPECT_GE(size, 0);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(out, &std::free);
  return {reinterpret_cast<const char*>(out), static_cast<size_t>(size)};
}

std::string utf8(utf8proc_int32_t code_point) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t size = utf8proc_encode_char(code_point, bytes);
  return {reinterpret_cast<const char*>(bytes), static_cast<size_t>(size)};
}

constexpr NormalForm kForms[] = {NormalForm::kNfc, NormalForm::kNfd, NormalForm::kNfkc,
                                 NormalForm::kNfkd};

// From UAX #15, figures 3 to 6.
TEST(Normalizer, ExamplesOfTheStandard) {
  EXPECT_EQ(normalize("\u212B", NormalForm::kNfc), "\u00C5");
  EXPECT_EQ(normalize("\u2126", NormalForm::kNfc), "\u03A9");
  EXPECT_EQ(normalize("\u0073\u0323\u0307", NormalForm::kNfc), "\u1E69");
  EXPECT_EQ(normalize("\u1E0B\u0323", NormalForm::kNfc), "\u1E0D\u0307");
  EXPECT_EQ(normalize("\u0071\u0307\u0323", NormalForm::kNfc), "\u0071\u0323\u0307");
  EXPECT_EQ(normalize("\u1E0B\u0323", NormalForm::kNfd), "\u0064\u0323\u0307");
  EXPECT_EQ(normalize("\uFB01", NormalForm::kNfc), "\uFB01");
  EXPECT_EQ(normalize("\uFB01", NormalForm::kNfkc), "fi");
  EXPECT_EQ(normalize("\u0032\u2075", NormalForm::kNfkd), "25");
  EXPECT_EQ(normalize("\u1E9B\u0323", NormalForm::kNfc), "\u1E9B\u0323");
  EXPECT_EQ(normalize("\u1E9B\u0323", NormalForm::kNfkc), "\u1E69");
  EXPECT_EQ(normalize("\u1112\u1161\u11AB", NormalForm::kNfc), "\uD55C");
  EXPECT_EQ(normalize("", NormalForm::kNfc), "");
}

TEST(Normalizer, EveryCodePointAsTheLibrary) {
  for (utf8proc_int32_t c = 1; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    const std::string text = utf8(c);
    for (const NormalForm form : kForms) ASSERT_EQ(normalize(text, form), library(text, form)) << c;
    if (c == 0x30000) c = 0xE0000;  // nothing is assigned between
  }
}

TEST(Normalizer, RandomSequencesAsTheLibrary) {
  std::mt19937 random(9);
  const auto from = [&](utf8proc_int32_t low, utf8proc_int32_t high) {
    return low + static_cast<utf8proc_int32_t>(random() % static_cast<uint32_t>(high - low + 1));
  };
  for (int run = 0; run < 20'000; ++run) {
    std::string text;
    while (text.size() < 20) {
      switch (random() % 5) {
        case 0:
          text += utf8(from('a', 'z'));
          break;
        case 1:
          text += utf8(from(0x1100, 0x11FF));
          break;  // Hangul jamo
        case 2:
          text += utf8(from(0xC0, 0x2FF));
          break;
        case 3:
          text += utf8(from(0x0590, 0x0DFF));
          break;  // scripts with marks of many classes
        default:
          text += utf8(from(0x300, 0x36F));  // combining marks
      }
    }
    for (const NormalForm form : kForms) ASSERT_EQ(normalize(text, form), library(text, form));
  }
}

}  // namespace recurve::normalizer_test

// Tokens of a text, apart from its state and in an export: read as they were written, and nothing
// else is read as some.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "server/state/state_form.h"
#include "tests/support/written_state.h"

namespace recurve::tokens_form_test {

using ::testing::HasSubstr;
using testing::reader_of;
using testing::with_checksum;

constexpr int32_t kVocab = 500;

// Why it is refused; empty: it is not.
std::string refusal(const std::string& bytes) {
  try {
    read_tokens(bytes.size(), reader_of(bytes), kVocab);
  } catch (const StateError& error) {
    return error.what();
  }
  return {};
}

const std::vector<uint32_t> kTokens = {4 * 499 + 3, 1, 4 * 7 + 2};

TEST(TokensForm, AreReadAsTheyWereWritten) {
  const std::string written = written_tokens(12, 900, kTokens);
  const StateHeader found = read_tokens(written.size(), reader_of(written), kVocab);
  EXPECT_EQ(found.id, 12u);
  EXPECT_EQ(found.position, 900);
  EXPECT_EQ(found.tokens, kTokens);
  EXPECT_EQ(read_id(written.size(), reader_of(written)), 12u);
  const std::vector<uint32_t> many(kMostTokens, 4 * kVocab - 1);
  EXPECT_LE(written_tokens(UINT64_MAX, INT64_MAX / 2, many).size(),
            most_token_bytes(kVocab, kMostTokens));
  EXPECT_THROW(read_state_header(written.size(), reader_of(written)), StateError);
}

TEST(TokensForm, EveryChangedByteIsFoundAndEveryCut) {
  const std::string written = written_tokens(12, 900, kTokens);
  for (size_t at = 0; at < written.size(); ++at) {
    std::string changed = written;
    changed[at] ^= 4;
    EXPECT_NE(refusal(changed), "") << at;
    EXPECT_NE(refusal(written.substr(0, at)), "") << at;
  }
  EXPECT_NE(refusal(written + " "), "");
}

// With the checksum that the header then must have.
TEST(TokensForm, ForgedOnesAreRefused) {
  const std::string written = written_tokens(12, 900, kTokens);
  const auto forged = [&](const std::string& from, const std::string& to) {
    std::string bytes = written;
    const size_t at = bytes.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return refusal(with_checksum(bytes.replace(at, from.size(), to)));
  };
  EXPECT_EQ(forged("1999", "1998"), "");
  EXPECT_THAT(forged("1999", "2000"), HasSubstr("must be in [0, 500), got 500"));
  EXPECT_THAT(forged("1999", "-199"), HasSubstr("must be an integer"));
  EXPECT_THAT(forged("1999", "1e99"), HasSubstr("must be an integer"));
  EXPECT_THAT(forged("[1999,1,30]", "\"1999,1,30\""), HasSubstr("must be a list"));
  EXPECT_THAT(forged("[1999,1,30]", "[         ]"), HasSubstr("must be a list"));
  EXPECT_THAT(forged("\"first\":900", "\"first\":-90"), HasSubstr("must be an integer"));
  EXPECT_THAT(forged("\"first\"", "\"fires\""), HasSubstr("must have the field \"first\""));
  const std::vector<uint32_t> too_many(kMostTokens + 1);
  EXPECT_THAT(refusal(written_tokens(1, 0, too_many)), HasSubstr("must be a list of 1 to 262144"));
}

// An export has all tokens of its text, the last ones, or none.
TEST(TokensForm, OfAnExportAreAsManyAsItsPosition) {
  StateHeader header{.model = "m",
                     .weights = "bf16",
                     .chunk = 8,
                     .position = 3,
                     .layout = {.arrays = {{.name = "n", .shape = {4}}}},
                     .vocab = kVocab};
  const NewImage made = make_image(header.layout, 3);
  for (const auto room : made.rooms) std::ranges::fill(room, std::byte{0});
  using Tokens = std::vector<uint32_t>;
  const auto written = [&](Tokens tokens, int64_t first, uint64_t before) {
    header.tokens = std::move(tokens);
    header.tokens_first = first;
    header.tokens_before = before;
    const StateFrame frame = frame_of(header, made.image);
    std::string text = frame.front;
    for (const std::string_view part : written_parts(header, made.image)) text += part;
    return text + frame.back;
  };
  const auto read_it = [&](const std::string& text) {
    return read_state(text.size(), reader_of(text), header, made.rooms);
  };
  const auto read_again = [&](Tokens tokens, int64_t first = 0, uint64_t before = 0) {
    return read_it(written(std::move(tokens), first, before));
  };
  EXPECT_EQ(read_again(kTokens).tokens, kTokens);
  EXPECT_EQ(read_again(kTokens).tokens_first, 0);
  EXPECT_TRUE(read_again({}).tokens.empty());
  EXPECT_THROW(read_again({1, 2}), StateError);
  EXPECT_THROW(read_again({1, 2, 4 * kVocab}), StateError);
  for (const auto& [tokens, first] :
       {std::pair(Tokens{1, 2}, 1), std::pair(Tokens{5}, 2), std::pair(Tokens(), 3)}) {
    const StateHeader found = read_again(tokens, first, UINT64_MAX);
    EXPECT_EQ(found.tokens, tokens);
    EXPECT_EQ(found.tokens_first, first);
    EXPECT_EQ(found.tokens_before, UINT64_MAX);
  }
  for (const auto& [tokens, first] : {std::pair(Tokens{1, 2}, 2), std::pair(Tokens{1}, 1),
                                      std::pair(Tokens(), 4), std::pair(Tokens{4 * kVocab}, 2)}) {
    EXPECT_THROW(read_again(tokens, first, 7), StateError) << first;
  }
  const std::string last = written({5}, 2, 7);
  const auto forged = [&](std::string_view from, std::string_view to) {
    std::string text = last;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return with_checksum(text.replace(at, from.size(), to));
  };
  EXPECT_EQ(read_it(forged("\"before\":\"7\"", "\"before\":\"8\"")).tokens_before, 8u);
  for (const auto& [from, to] :
       {std::pair("\"before\":\"7\"", "\"before\":\"x\""), std::pair("\"first\":2", "\"first\":0"),
        std::pair("\"first\":2", "\"fires\":2"), std::pair("\"tokens\":[5]", "\"tokens\":5  "),
        std::pair("{\"before\":\"7\",\"first\":2,\"tokens\":[5]}",
                  "\"before,\"                           ")}) {
    EXPECT_THROW(read_it(forged(from, to)), StateError) << from;
  }
}

}  // namespace recurve::tokens_form_test

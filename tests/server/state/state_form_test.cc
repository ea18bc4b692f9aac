// What is written of a state is what is read of it, and nothing else is read as one.
#include "server/state/state_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>

namespace recurve::state_form_test {

using ::testing::HasSubstr;
using Kind = StateError::Kind;

StateHeader header() {
  return {.model = "00112233445566778899aabbccddeeff",
          .weights = "bf16",
          .chunk = 64,
          .id = 17,
          .position = 4711,
          .pending = 42,
          .answer = StateAnswer{.request_id = "r-1",
                                .digest = "ffeeddccbbaa99887766554433221100",
                                .reason = "stop_id",
                                .stop_id = 3,
                                .prompt_tokens = 9,
                                .before = 4000,
                                .seed = UINT64_MAX},
          .history = {1, 0, ~uint64_t{0}},
          .answer_ids = {5, 42},
          .layout = {.arrays = {{.name = "C", .layer = 0, .shape = {3, 100, 100}},
                                {.name = "n", .layer = 1, .dtype = DType::kBF16, .shape = {77}},
                                // RetNet's and RecurrentGemma's.
                                {.name = "position", .dtype = DType::kI32, .shape = {1}}}}};
}

std::vector<std::byte> random_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::string written(const StateHeader& header, const std::vector<std::byte>& state) {
  const StateFrame frame = frame_of(header, state);
  return frame.front + std::string(reinterpret_cast<const char*>(state.data()), state.size()) +
         frame.back;
}

StateHeader read(const std::string& bytes, const StateHeader& wanted,
                 std::vector<std::byte>* state) {
  state->assign(wanted.layout.bytes(), {});
  const auto read_at = [&](uint64_t offset, std::span<std::byte> to) {
    ASSERT_LE(offset + to.size(), bytes.size()) << "reads only what is there";
    std::memcpy(to.data(), bytes.data() + offset, to.size());
  };
  return read_state(bytes.size(), read_at, wanted, *state);
}

// The error that reading gives, if any.
std::pair<std::optional<Kind>, std::string> error_of(const std::string& bytes,
                                                     const StateHeader& wanted = header()) {
  std::vector<std::byte> state;
  try {
    read(bytes, wanted, &state);
  } catch (const StateError& error) {
    return {error.kind(), error.what()};
  }
  return {};
}

TEST(StateForm, IsReadAsItWasWritten) {
  const std::vector<std::byte> state = random_bytes(header().layout.bytes(), 1);
  std::vector<std::byte> found;
  const StateHeader out = read(written(header(), state), header(), &found);
  EXPECT_EQ(found, state);
  EXPECT_EQ(out.id, 17u);
  EXPECT_EQ(out.position, 4711);
  EXPECT_EQ(out.pending, 42);
  EXPECT_EQ(out.history, header().history);
  EXPECT_EQ(out.answer_ids, header().answer_ids);
  ASSERT_TRUE(out.answer);
  EXPECT_EQ(out.answer->request_id, "r-1");
  EXPECT_EQ(out.answer->seed, UINT64_MAX);
  EXPECT_EQ(out.answer->stop_id, 3);
  EXPECT_EQ(out.answer->before, 4000);
}

// Made by tests/weights_tools/state_test.py, after the description alone.
TEST(StateForm, IsReadAsItIsDescribed) {
  std::ifstream in(std::string(RECURVE_SOURCE_DIR) + "/tests/fuzz/corpus/state_form/small.state",
                   std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const StateHeader wanted{
      .model = "0123456789abcdef0123456789abcdef",
      .weights = "bf16",
      .chunk = 64,
      .layout = {.arrays = {{.name = "C", .layer = 0, .shape = {2, 3}},
                            {.name = "n", .layer = 1, .dtype = DType::kBF16, .shape = {2}}}}};
  std::vector<std::byte> state;
  const StateHeader out = read(bytes, wanted, &state);
  std::vector<float> matrix(6);
  std::memcpy(matrix.data(), state.data(), 6 * sizeof(float));
  EXPECT_THAT(matrix, ::testing::ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(out.position, 12);
  EXPECT_EQ(out.pending, 65);
  EXPECT_THAT(out.history, ::testing::ElementsAre(8, 2));
  EXPECT_THAT(out.answer_ids, ::testing::ElementsAre(66, 65));
  EXPECT_EQ(out.answer->seed, UINT64_MAX);
}

TEST(StateForm, WithoutAnAnswerAndWithoutAnythingAbsorbed) {
  const StateHeader empty{.model = header().model, .weights = "bf16", .chunk = 64};
  std::vector<std::byte> found;
  const StateHeader out = read(written(empty, {}), empty, &found);
  EXPECT_FALSE(out.answer);
  EXPECT_FALSE(out.pending);
  EXPECT_TRUE(out.history.empty());
}

TEST(StateForm, NeverTakesMoreThanWasPlanned) {
  StateHeader most = header();
  most.history.resize((50'000 + 63) / 64);
  most.answer_ids.resize(300);
  const auto state = random_bytes(most.layout.bytes(), 2);
  EXPECT_LE(written(most, state).size(), most_written_bytes(most.layout, 50'000, 300));
}

// Every byte counts: whichever is changed, wherever it is cut.
TEST(StateForm, DamageIsFoundWhereverItIs) {
  StateHeader small = header();
  small.layout.arrays[0].shape = {40, 40, 40};
  const std::string good = written(small, random_bytes(small.layout.bytes(), 3));
  ASSERT_FALSE(error_of(good, small).first);
  std::mt19937_64 random(4);
  const auto try_at = [&](size_t at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
    const auto [kind, sentence] = error_of(bad, small);
    ASSERT_TRUE(kind) << "byte " << at;
    EXPECT_NE(kind, Kind::kOtherModel) << "byte " << at << ": " << sentence;
  };
  for (size_t at = 0; at < 2000; ++at) try_at(at);
  for (size_t at = good.size() - 2000; at < good.size(); ++at) try_at(at);
  for (int i = 0; i < 1000; ++i) try_at(random() % good.size());
  for (size_t bytes = 0; bytes < 1000; ++bytes) EXPECT_TRUE(error_of(good.substr(0, bytes)).first);
  EXPECT_EQ(error_of(good.substr(0, good.size() - 1), small).first, Kind::kDamaged);
  EXPECT_EQ(error_of(good + "x", small).first, Kind::kDamaged);
}

TEST(StateForm, OfAnotherModelIsRefusedByWhatDiffers) {
  const std::string good = written(header(), random_bytes(header().layout.bytes(), 5));
  const auto refusal = [&](auto change) {
    StateHeader other = header();
    change(other);
    const auto [kind, sentence] = error_of(good, other);
    EXPECT_EQ(kind, Kind::kOtherModel) << sentence;
    return sentence;
  };
  EXPECT_THAT(refusal([](auto& h) { h.model = "other"; }), HasSubstr("the model"));
  EXPECT_THAT(refusal([](auto& h) { h.weights = "f32"; }), HasSubstr("weights"));
  EXPECT_THAT(refusal([](auto& h) { h.chunk = 32; }), HasSubstr("every 64"));
  EXPECT_THAT(refusal([](auto& h) { h.layout.arrays[0].shape = {1}; }), HasSubstr("arrays"));
  EXPECT_THAT(refusal([](auto& h) { h.layout.arrays[1].name = "m"; }), HasSubstr("arrays"));
  EXPECT_THAT(refusal([](auto& h) { h.layout.arrays.pop_back(); }), HasSubstr("arrays"));
}

TEST(StateForm, NewerAndForeignOnesAreRefusedByName) {
  std::string newer = written(header(), random_bytes(header().layout.bytes(), 6));
  newer[8] = 2;
  EXPECT_EQ(error_of(newer).first, Kind::kNewer);
  EXPECT_THAT(error_of(newer).second, HasSubstr("version 2"));
  EXPECT_EQ(error_of(std::string(100, 'x')).first, Kind::kForeign);
  EXPECT_EQ(error_of("").first, Kind::kForeign);
}

}  // namespace recurve::state_form_test

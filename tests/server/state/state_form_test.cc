// What is written of a state is what is read of it, and nothing else is read as one.
#include "server/state/state_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>

#include "tests/support/engine/state_bytes.h"
#include "tests/support/written_state.h"

namespace recurve::state_form_test {

using ::testing::HasSubstr;
using testing::reader_of;
using testing::with_checksum;

StateHeader header() {
  return {
      .model = "00112233445566778899aabbccddeeff",
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
      .layout = {
          .arrays = {
              {.name = "C", .layer = 0, .shape = {3, 100, 100}},
              {.name = "n", .layer = 1, .dtype = DType::kBF16, .shape = {77}, .piece = "window"},
              // RetNet's and RecurrentGemma's.
              {.name = "position", .dtype = DType::kI32, .shape = {1}}}}};
}

// Finite, whether they are read as F32 or as BF16.
StateBytes random_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  StateBytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random()) & std::byte{0xBF};
  return bytes;
}

std::string written(const StateHeader& header, const StateBytes& state) {
  const StateImage image = image_of_bytes(header.layout, state);
  const StateFrame frame = frame_of(header, image);
  std::string all = frame.front;
  for (const std::string_view part : written_parts(header, image)) all += part;
  return all + frame.back;
}

StateHeader read(const std::string& bytes, const StateHeader& wanted, StateBytes* state) {
  const NewImage made = make_image(wanted.layout);
  StateHeader header = read_state(bytes.size(), reader_of(bytes), wanted, made.rooms);
  *state = bytes_in(wanted.layout, made.image);
  return header;
}

// The error that reading gives, if any.
std::pair<std::optional<EndReason>, std::string> error_of(const std::string& bytes,
                                                          const StateHeader& wanted = header()) {
  StateBytes state;
  try {
    read(bytes, wanted, &state);
  } catch (const StateError& error) {
    return {error.reason(), error.what()};
  }
  return {};
}

TEST(StateForm, IsReadAsItWasWritten) {
  const StateBytes state = random_bytes(header().layout.bytes(), 1);
  StateBytes found;
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

// Of the files that tests/weights_tools/state_test.py makes after the description alone.
StateHeader small_header(const std::string& piece_of_ring) {
  return {.model = "0123456789abcdef0123456789abcdef",
          .weights = "bf16",
          .chunk = 64,
          .layout = {.arrays = {{.name = "C", .layer = 0, .shape = {2, 3}},
                                {.name = "ring",
                                 .layer = 0,
                                 .dtype = DType::kI32,
                                 .shape = {3},
                                 .piece = piece_of_ring},
                                {.name = "n", .layer = 1, .dtype = DType::kBF16, .shape = {2}}}}};
}

std::string file_of_corpus(const std::string& name) {
  std::ifstream in(std::string(RECURVE_SOURCE_DIR) + "/tests/fuzz/corpus/state_form/" + name,
                   std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// In both versions, whatever pieces the arrays are in here.
TEST(StateForm, IsReadAsItIsDescribed) {
  for (const char* file : {"small.state", "version_2.state"}) {
    for (const char* piece : {"window", "recurrent", "of another name"}) {
      SCOPED_TRACE(std::string(file) + ", " + piece);
      const std::string bytes = file_of_corpus(file);
      StateBytes state;
      const StateHeader out = read(bytes, small_header(piece), &state);
      ASSERT_EQ(state.size(), 24u + 12 + 4);
      std::vector<float> matrix(6);
      std::memcpy(matrix.data(), state.data(), 24);
      EXPECT_THAT(matrix, ::testing::ElementsAre(0, 1, 2, 3, 4, 5));
      std::vector<int32_t> ring(3);
      std::memcpy(ring.data(), state.data() + 24, 12);
      EXPECT_THAT(ring, ::testing::ElementsAre(7, 8, 9));
      std::vector<uint16_t> vector(2);
      std::memcpy(vector.data(), state.data() + 36, 4);
      EXPECT_THAT(vector, ::testing::ElementsAre(0x3F80, 0xC000));
      EXPECT_EQ(out.position, 12);
      EXPECT_EQ(out.pending, 65);
      EXPECT_THAT(out.history, ::testing::ElementsAre(8, 2));
      EXPECT_THAT(out.answer_ids, ::testing::ElementsAre(66, 65));
      EXPECT_EQ(out.answer->seed, UINT64_MAX);
      const StateHeader answer = read_answer(bytes.size(), reader_of(bytes), 67);
      EXPECT_THAT(answer.answer_ids, ::testing::ElementsAre(66, 65));
    }
  }
}

TEST(StateForm, WithoutAnAnswerAndWithoutAnythingAbsorbed) {
  const StateHeader empty{.model = header().model, .weights = "bf16", .chunk = 64};
  StateBytes found;
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
    EXPECT_NE(kind, EndReason::kOtherModel) << "byte " << at << ": " << sentence;
  };
  for (size_t at = 0; at < 2000; ++at) try_at(at);
  for (size_t at = good.size() - 2000; at < good.size(); ++at) try_at(at);
  for (int i = 0; i < 1000; ++i) try_at(random() % good.size());
  for (size_t bytes = 0; bytes < 1000; ++bytes) EXPECT_TRUE(error_of(good.substr(0, bytes)).first);
  EXPECT_EQ(error_of(good.substr(0, good.size() - 1), small).first, EndReason::kStateLost);
  EXPECT_EQ(error_of(good + "x", small).first, EndReason::kStateLost);
}

// One that two threads read, whose last part is a short one.
class LargeState : public ::testing::Test {
 protected:
  LargeState() {
    header_.layout.arrays[0].shape = {17, 1 << 18};
    state_.resize(header_.layout.bytes());
    std::mt19937_64 random(5);
    for (size_t at = 0; at < state_.size(); at += 61) state_[at] = std::byte(random());
    written_ = written(header_, state_);
  }
  StateHeader header_ = header();
  StateBytes state_;
  std::string written_;
};

TEST_F(LargeState, IsReadAsItWasWritten) {
  StateBytes found;
  EXPECT_EQ(read(written_, header_, &found).answer_ids, header_.answer_ids);
  EXPECT_TRUE(found == state_);
}

TEST_F(LargeState, DamageIsFoundWhereverItIs) {
  constexpr size_t kPart = size_t{1} << 20;
  const size_t data = written_.size() - state_.size() - 32;  // of history and answer
  for (size_t part = 0; part < 17; ++part) {
    for (const size_t at : {data + part * kPart, data + (part + 1) * kPart - 1}) {
      written_[at] ^= 1;
      EXPECT_EQ(error_of(written_, header_).first, EndReason::kStateLost) << at;
      written_[at] ^= 1;
    }
  }
  EXPECT_FALSE(error_of(written_, header_).first);
}

TEST_F(LargeState, WhatReadingThrowsIsThrown) {
  const NewImage made = make_image(header_.layout);
  for (const size_t part : {1, 2, 9, 17}) {
    std::atomic<size_t> calls = 0;
    const auto read = [&](uint64_t offset, std::span<std::byte> to) {
      if (to.size() == size_t{1} << 20 && ++calls == part) throw std::runtime_error("no such disk");
      reader_of(written_)(offset, to);
    };
    EXPECT_THAT([&] { read_state(written_.size(), read, header_, made.rooms); },
                ::testing::ThrowsMessage<std::runtime_error>("no such disk"));
  }
}

// Of two pages, which come in another order than they are here.
StateHeader grown_header() {
  const auto per_token = StateGrowth::kPerToken;
  return {.model = "m",
          .weights = "bf16",
          .chunk = 64,
          .layout = {.arrays = {{.name = "n", .layer = 0, .shape = {2}},
                                {.name = "K", .layer = 1, .shape = {2}, .growth = per_token},
                                {.name = "V",
                                 .layer = 1,
                                 .dtype = DType::kBF16,
                                 .shape = {1},
                                 .growth = per_token}}}};
}

std::string refusal_of(const std::string& bytes, const StateHeader& wanted, int64_t tokens) {
  try {
    read_state(bytes.size(), reader_of(bytes), wanted, make_image(wanted.layout, tokens).rooms);
  } catch (const StateError& error) {
    return error.what();
  }
  return {};
}

TEST(StateForm, PagesAreReadAndWritten) {
  const std::string bytes = file_of_corpus("grown.state");
  const StateHeader wanted = grown_header();
  EXPECT_EQ(wanted.layout.bytes(70), 8u + 2 * 640);
  const NewImage made = make_image(wanted.layout, 70);
  ASSERT_EQ(made.rooms.size(), 3u);
  StateHeader out = read_state(bytes.size(), reader_of(bytes), wanted, made.rooms);
  EXPECT_EQ(out.position, 70);
  for (int64_t t = 0; t < 70; ++t) {
    float key[2];
    uint16_t value = 0;
    const std::byte* page = made.rooms[1 + static_cast<size_t>(t / 64)].data();
    std::memcpy(key, page + t % 64 * 8, sizeof key);
    std::memcpy(&value, page + 64 * 8 + t % 64 * 2, sizeof value);
    EXPECT_THAT(key, ::testing::ElementsAre(2 * t, 2 * t + 1));
    EXPECT_EQ(value, 0x3F80);
  }
  const StateFrame frame = frame_of(out, made.image);
  std::string again = frame.front;
  for (const std::string_view part : written_parts(out, made.image)) again += part;
  again += frame.back;
  const NewImage second = make_image(wanted.layout, 70);
  read_state(again.size(), reader_of(again), wanted, second.rooms);
  for (size_t p = 0; p < 3; ++p) {
    EXPECT_TRUE(std::ranges::equal(made.rooms[p], second.rooms[p])) << p;
  }
}

TEST(StateForm, PagesAreThoseOfThePosition) {
  const std::string bytes = file_of_corpus("grown.state");
  EXPECT_EQ(refusal_of(bytes, grown_header(), 128), "") << "two pages, too";
  EXPECT_THAT(refusal_of(bytes, grown_header(), 64), HasSubstr("it has 70 tokens"));
  EXPECT_THAT(refusal_of(bytes, grown_header(), 129), HasSubstr("it has 70 tokens"));
  StateHeader fixed = grown_header();
  for (StateArray& array : fixed.layout.arrays) array.growth = StateGrowth::kFixed;
  EXPECT_THAT(refusal_of(bytes, fixed, 0), HasSubstr("arrays"));
}

// With the checksum that the header then must have: nothing is taken for more than is there.
TEST(StateForm, ForgedPagesAreRefused) {
  const std::string good = file_of_corpus("grown.state");
  const auto forged = [&](const std::string& from, const std::string& to) {
    std::string bytes = good;
    const size_t at = bytes.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    bytes.replace(at, from.size(), to);
    uint32_t header = 0;
    std::memcpy(&header, bytes.data() + 12, sizeof header);
    header += static_cast<uint32_t>(to.size() - from.size());
    std::memcpy(bytes.data() + 12, &header, sizeof header);
    return refusal_of(with_checksum(std::move(bytes)), grown_header(), 70);
  };
  EXPECT_EQ(forged("\"id\": \"1\"", "\"id\": \"2\""), "");
  const std::string position = "\"position\": ";
  EXPECT_THAT(forged(position + "70", position + "129"),
              HasSubstr("sizes of its arrays and of its data differ"));
  EXPECT_THAT(forged(position + "70", position + "9223372036854775807"),
              HasSubstr("sizes of its arrays and of its data differ"));
  EXPECT_THAT(forged("\"shape\": [1]", "\"shape\": [0]"), HasSubstr("has 0 bytes a token"));
  EXPECT_THAT(forged("\"growth\": \"token\"", "\"growth\": \"often\""),
              HasSubstr("the growth of an array is unknown"));
  EXPECT_THAT(forged("\"page 1\"", "\"page 0\""), HasSubstr("a piece without arrays"));
  EXPECT_THAT(forged("\"page 1\"", "\"page 9\""), HasSubstr("a piece without arrays"));
}

TEST(StateForm, DamageIsFoundInVersion2Too) {
  const StateHeader wanted = small_header("window");
  const std::string good = file_of_corpus("version_2.state");
  ASSERT_FALSE(error_of(good, wanted).first);
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    const auto [kind, sentence] = error_of(bad, wanted);
    ASSERT_TRUE(kind) << "byte " << at;
    EXPECT_NE(kind, EndReason::kOtherModel) << "byte " << at << ": " << sentence;
    EXPECT_TRUE(error_of(good.substr(0, at), wanted).first) << at << " bytes";
  }
}

TEST(StateForm, SaysWhichPieceIsDamaged) {
  std::string bad = written(header(), random_bytes(header().layout.bytes(), 7));
  const auto damaged_from_end = [&](size_t from_end) {
    std::string bytes = bad;
    bytes[bytes.size() - from_end] ^= 1;
    return error_of(bytes).second;
  };
  // The answer has 8 bytes, the history 24, the window 154.
  EXPECT_THAT(damaged_from_end(8), HasSubstr("answer"));
  EXPECT_THAT(damaged_from_end(9), HasSubstr("history"));
  EXPECT_THAT(damaged_from_end(33), HasSubstr("window"));
  EXPECT_THAT(damaged_from_end(32 + 155), HasSubstr("recurrent"));
}

TEST(StateForm, NoTextOfAHeaderIsRepeatedAtLength) {
  StateHeader lengthy = header();
  lengthy.model = std::string(1 << 20, 'm');
  const std::string state = written(lengthy, random_bytes(header().layout.bytes(), 5));
  const auto [kind, sentence] = error_of(state, header());
  EXPECT_EQ(kind, EndReason::kStateLost);
  EXPECT_THAT(sentence, HasSubstr("\"model\" in its header must have at most"));
  EXPECT_LT(sentence.size(), 150u);
}

TEST(StateForm, OfAnotherModelIsRefusedByWhatDiffers) {
  const std::string good = written(header(), random_bytes(header().layout.bytes(), 5));
  const auto refusal = [&](auto change) {
    StateHeader other = header();
    change(other);
    const auto [kind, sentence] = error_of(good, other);
    EXPECT_EQ(kind, EndReason::kOtherModel) << sentence;
    return sentence;
  };
  EXPECT_THAT(refusal([](auto& h) { h.model = "other"; }), HasSubstr("the model"));
  EXPECT_THAT(refusal([](auto& h) { h.weights = "f32"; }), HasSubstr("weights"));
  EXPECT_THAT(refusal([](auto& h) { h.chunk = 32; }), HasSubstr("chunk of prompts is 64"));
  EXPECT_THAT(refusal([](auto& h) { h.layout.arrays[0].shape = {1}; }), HasSubstr("arrays"));
  EXPECT_THAT(refusal([](auto& h) { h.layout.arrays[1].name = "m"; }), HasSubstr("arrays"));
  EXPECT_THAT(refusal([](auto& h) { h.layout.arrays.pop_back(); }), HasSubstr("arrays"));
}

// What checksums do not say.
class StateNumbers : public ::testing::Test {
 protected:
  StateNumbers() {
    header_.vocab = 192;  // as its history has bits
    header_.layout.arrays[2].values = StateValues::kPosition;
    put(static_cast<int32_t>(header_.position), kPosition);
  }
  template <typename Number>
  void put(Number number, size_t at) {
    std::memcpy(state_.data() + at, &number, sizeof number);
  }
  // Of the state with that number there; empty: none.
  template <typename Number>
  std::string refusal_with(Number number, size_t at) {
    const StateBytes before = state_;
    put(number, at);
    std::string refusal = this->refusal(header_);
    state_ = before;
    return refusal;
  }
  std::string refusal(const StateHeader& header) {
    const auto [kind, sentence] = error_of(written(header, state_), header_);
    EXPECT_TRUE(!kind || kind == EndReason::kForeignState) << sentence;
    return sentence;
  }

  static constexpr size_t kC = 0, kN = 4 * 30'000, kPosition = kN + 2 * 77;
  StateHeader header_ = header();
  StateBytes state_ = random_bytes(header_.layout.bytes(), 8);
};

TEST_F(StateNumbers, AreFinite) {
  EXPECT_EQ(refusal_with(0.5f, kC), "");
  EXPECT_EQ(refusal_with(std::numeric_limits<float>::max(), kC), "");
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
    for (const size_t at : {kC, size_t{4 * 12'345}, kN - 4}) {
      EXPECT_THAT(refusal_with(bad, at), HasSubstr("\"C\" of layer 0 must be finite"));
    }
  }
  for (const uint16_t bad : {0x7F80, 0xFF80, 0x7FFF}) {
    for (const size_t at : {kN, kPosition - 2}) {
      EXPECT_THAT(refusal_with(bad, at), HasSubstr("\"n\" of layer 1 must be finite"));
    }
  }
}

TEST_F(StateNumbers, CountWhatWasAbsorbed) {
  EXPECT_EQ(refusal_with(int32_t{4711}, kPosition), "");
  for (const int32_t bad : {-2, INT32_MIN, -100, INT32_MAX, 0, 4710}) {
    EXPECT_THAT(refusal_with(bad, kPosition), HasSubstr("\"position\" must be 4711"));
  }
  const int64_t most = header_.layout.most_tokens();
  header_.position = most;
  EXPECT_EQ(refusal_with(static_cast<int32_t>(most), kPosition), "");
  for (const int64_t beyond : {most + 1, (int64_t{1} << 32) + 4711, INT64_MAX}) {
    header_.position = beyond;
    EXPECT_THAT(refusal_with(static_cast<int32_t>(beyond), kPosition), HasSubstr("at most"));
  }
}

TEST_F(StateNumbers, CountRowsNextToAState) {
  header_.layout.arrays[2].values = StateValues::kHeldRows;
  header_.layout.arrays[2].written_every = 8;
  for (const int32_t good : {0, 1, 7}) EXPECT_EQ(refusal_with(good, kPosition), "");
  for (const int32_t bad : {-1, INT32_MIN, 8, 4711, INT32_MAX}) {
    EXPECT_THAT(refusal_with(bad, kPosition), HasSubstr("\"position\" must be in [0, 8), got"));
  }
}

TEST_F(StateNumbers, AreIdsOfTheVocabulary) {
  EXPECT_EQ(refusal(header_), "");
  StateHeader bad = header_;
  bad.pending = 192;
  EXPECT_THAT(refusal(bad), HasSubstr("pending token must be in [0, 192)"));
  bad = header_;
  bad.history.push_back(1);
  EXPECT_THAT(refusal(bad), HasSubstr("history"));
  for (const int32_t id : {-1, 192, INT32_MAX}) {
    bad = header_;
    bad.answer_ids[1] = id;
    EXPECT_THAT(refusal(bad), HasSubstr("token of the answer must be in [0, 192)"));
    const std::string bytes = written(bad, state_);
    EXPECT_THAT([&] { read_answer(bytes.size(), reader_of(bytes), 192); },
                ::testing::ThrowsMessage<StateError>(HasSubstr("token of the answer")));
  }
}

// Programs that know no adapters refuse the version.
TEST(StateForm, AnAdapterIsWrittenAndRead) {
  StateHeader with = header();
  const StateBytes state = random_bytes(with.layout.bytes(), 6);
  EXPECT_EQ(written(with, state)[8], 3);
  with.adapter = {.name = "story", .digest = "0123456789abcdef0123456789abcdef"};
  const std::string bytes = written(with, state);
  EXPECT_EQ(bytes[8], 4);
  EXPECT_EQ(read_state_header(bytes.size(), reader_of(bytes)).adapter, with.adapter);
  std::string nameless = bytes;
  nameless.replace(nameless.find("\"story\""), 7, "\"\"     ");
  EXPECT_EQ(error_of(with_checksum(nameless)).first, EndReason::kStateLost);
  std::string without = written(header(), state);
  without[8] = 4;
  EXPECT_THAT(error_of(with_checksum(without)).second, HasSubstr("field \"adapter\""));
}

TEST(StateForm, NewerAndForeignOnesAreRefusedByName) {
  std::string newer = written(header(), random_bytes(header().layout.bytes(), 6));
  newer[8] = 5;
  EXPECT_EQ(error_of(newer).first, EndReason::kForeignState);
  EXPECT_THAT(error_of(newer).second, HasSubstr("version is 5"));
  newer[8] = 1;  // not lost: it stays in its folder
  EXPECT_EQ(error_of(newer).first, EndReason::kOtherModel);
  EXPECT_THAT(error_of(newer).second, HasSubstr("version is 1"));
  newer[8] = 0;  // which none ever was
  EXPECT_EQ(error_of(newer).first, EndReason::kStateLost);
  EXPECT_THAT(error_of(newer).second, HasSubstr("version is 0"));
  EXPECT_EQ(error_of(std::string(100, 'x')).first, EndReason::kForeignState);
  EXPECT_EQ(error_of("").first, EndReason::kForeignState);
}

}  // namespace recurve::state_form_test

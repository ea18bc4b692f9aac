// States whose full pages are in page groups: read as they were written, and nothing else is read
// as one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <random>

#include "server/session/state_transfer.h"
#include "server/state/state_form.h"
#include "tests/support/written_state.h"

namespace recurve::page_groups_test {

using ::testing::HasSubstr;
using testing::reader_of;
using testing::with_checksum;

StateHeader header(int64_t position) {
  const auto per_token = StateGrowth::kPerToken;
  return {.model = "m",
          .weights = "bf16",
          .chunk = 64,
          .id = 9,
          .position = position,
          .history = {5},
          .answer_ids = {1, 2},
          .layout = {.arrays = {{.name = "n", .shape = {40}},
                                {.name = "K", .layer = 1, .shape = {2}, .growth = per_token}}}};
}
constexpr size_t kPageBytes = 64 * 2 * sizeof(float);

NewImage image_at(int64_t position) {
  const NewImage made = make_image(header(0).layout, position);
  std::mt19937 random(3);  // pages are those of shorter states, too
  for (const auto room : made.rooms) {
    for (std::byte& byte : room) byte = static_cast<std::byte>(random()) & std::byte{0xBF};
  }
  return made;
}

// A state of 200 tokens: page 0 in one group, 1 and 2 in the next, and 3, which is not full, with
// the state.
class PageGroups : public ::testing::Test {
 protected:
  PageGroups() {
    base_.base = add_group(0, 70, 100);
    base_.base = add_group(1, 200, 101);
    const StateFrame frame = frame_of(base_, image_.image);
    state_ = frame.front;
    for (const std::string_view part : written_parts(base_, image_.image)) state_ += part;
    state_ += frame.back;
  }
  PageGroupRef add_group(int64_t first, int64_t position, uint64_t id) {
    StateHeader shorter = header(position);
    shorter.base = base_.base;
    const PageGroup group = page_group_of(shorter, image_.image, first, id);
    std::string& bytes = groups_[id] = group.front;
    for (const std::string_view page : group.pages) bytes += page;
    return group.ref;
  }
  StateHeader read(const NewImage& made) {
    const auto read_base = [&](const PageGroupRef& base, const StateRooms& pages) {
      auto end = static_cast<int64_t>(pages.size());
      for (PageGroupRef at = base; end > 0;) {
        const std::string& bytes = groups_.at(at.id);
        at = read_page_group(bytes.size(), reader_of(bytes), at, pages, &end);
      }
    };
    return read_state(state_.size(), reader_of(state_), header(0), made.rooms, read_base);
  }
  // Why it is refused, if it is.
  std::string refusal(EndReason* reason = nullptr) {
    try {
      read(make_image(header(0).layout, 200));
    } catch (const StateError& error) {
      if (reason != nullptr) *reason = error.reason();
      return error.what();
    }
    return {};
  }
  const NewImage image_ = image_at(200);
  StateHeader base_ = header(200);
  std::map<uint64_t, std::string> groups_;
  std::string state_;
};

TEST_F(PageGroups, AreReadAsTheyWereWritten) {
  const NewImage made = make_image(header(0).layout, 200);
  const StateHeader found = read(made);
  EXPECT_EQ(found.position, 200);
  EXPECT_EQ(found.base.id, 0u) << "it is complete";
  EXPECT_EQ(found.answer_ids, header(0).answer_ids);
  for (size_t p = 0; p < made.rooms.size(); ++p) {
    EXPECT_TRUE(std::ranges::equal(made.rooms[p], image_.rooms[p])) << p;
  }
  EXPECT_LT(state_.size(), 160 + kPageBytes + 1200);
  EXPECT_LT(groups_.at(100).size(), kPageBytes + 200);
  EXPECT_LT(groups_.at(101).size(), 2 * kPageBytes + 400);
  EXPECT_EQ(read_id(state_.size(), reader_of(state_)), 9u);
  EXPECT_EQ(read_id(groups_.at(101).size(), reader_of(groups_.at(101))), 101u);
}

TEST_F(PageGroups, EveryChangedByteIsFound) {
  for (std::string* bytes : {&state_, &groups_.at(100), &groups_.at(101)}) {
    const std::string good = *bytes;
    for (size_t at = 0; at < good.size(); ++at) {
      (*bytes)[at] = static_cast<char>(good[at] ^ 4);
      ASSERT_NE(refusal(), "") << "byte " << at << " of " << good.size();
      *bytes = good.substr(0, at);
      ASSERT_NE(refusal(), "") << "cut off at " << at;
      *bytes = good;
    }
  }
  EXPECT_EQ(refusal(), "");
}

// Groups that are whole, and not those that the state was written with.
TEST_F(PageGroups, OthersAreRefusedByName) {
  EndReason reason{};
  const std::string first = groups_.at(100), second = groups_.at(101);
  groups_.at(100) = second;
  groups_.at(101) = first;
  EXPECT_THAT(refusal(&reason), HasSubstr("page group 101 is not the one"));
  EXPECT_EQ(reason, EndReason::kForeignState);
  // With the same ID, of another folder.
  groups_.at(101) = second;
  image_.rooms[1][7] ^= std::byte{1};
  base_.base = {};
  add_group(0, 70, 100);
  EXPECT_THAT(refusal(&reason), HasSubstr("page group 100 is not the one"));
  EXPECT_EQ(reason, EndReason::kForeignState);
  groups_.at(100) = state_;
  EXPECT_NE(refusal(), "");
}

// With the checksum that the header then must have.
TEST_F(PageGroups, ForgedOnesAreRefused) {
  const std::string group = groups_.at(101), state = state_;
  const auto forged_group = [&](const std::string& from, const std::string& to) {
    std::string bytes = group;
    const size_t at = bytes.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    bytes = with_checksum(bytes.replace(at, from.size(), to));
    PageGroupRef wanted{.id = 101};
    std::memcpy(&wanted.checksum, bytes.data() + 24, 8);
    try {
      int64_t end = 3;
      const NewImage made = make_image(header(0).layout, 200);
      read_page_group(bytes.size(), reader_of(bytes), wanted,
                      {made.rooms.begin() + 1, made.rooms.begin() + 4}, &end);
    } catch (const StateError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(forged_group("\"first\":1", "\"first\":1"), "");
  EXPECT_THAT(forged_group("\"first\":1", "\"first\":0"), HasSubstr("not in order"));
  EXPECT_THAT(forged_group("\"first\":1", "\"first\":9"), HasSubstr("not in order"));
  EXPECT_THAT(forged_group("\"page 2\"", "\"page 1\""), HasSubstr("not in order"));
  EXPECT_THAT(forged_group("\"bytes\":512", "\"bytes\":256"),
              HasSubstr("sizes of its pages and of its data differ"));
  EXPECT_THAT(forged_group("\"base\"", "\"basf\""), HasSubstr("must have a base if"));
  EXPECT_THAT(forged_group("\"id\":\"100\"", "\"id\":\"000\""), HasSubstr("an id above 0"));

  const auto forged_state = [&](const std::string& from, const std::string& to) {
    state_ = state;
    const size_t at = state_.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    state_ = with_checksum(state_.replace(at, from.size(), to));
    return refusal();
  };
  EXPECT_EQ(forged_state("\"id\":\"9\"", "\"id\":\"8\""), "");
  const std::string position = "\"position\":";
  EXPECT_THAT(forged_state(position + "200", position + "900"),
              HasSubstr("a piece without arrays"));
  EXPECT_THAT(forged_state(position + "200", position + "256"),
              HasSubstr("sizes of its arrays and of its data differ"));
  EXPECT_THAT(forged_state(position + "200", position + "129"),
              HasSubstr("a piece without arrays"));
  EXPECT_THAT(forged_state("\"base\"", "\"basf\""),
              HasSubstr("sizes of its arrays and of its data differ"));
  EXPECT_THAT(forged_state("\"growth\":\"token\"", "\"growth\":\"fixed\""), HasSubstr("arrays"));
}

// A state that claims as many pages as no memory has, in a base: nothing is taken for them.
TEST_F(PageGroups, AreOnlyReadWithTheStateThatTheyAreOf) {
  EXPECT_THAT([&] { state_reader(header(0))(state_); },
              ::testing::ThrowsMessage<StateError>(HasSubstr("export the session instead")));
  EXPECT_THAT([&] { check_front(state_, header(0)); },
              ::testing::ThrowsMessage<StateError>(HasSubstr("export the session instead")));
  EXPECT_THAT(
      [&] { state_reader(header(0))(groups_.at(100)); },
      ::testing::ThrowsMessage<StateError>(HasSubstr("it is a page group, expected a state")));
  std::string forged = state_;
  forged.replace(forged.find("\"position\":200"), 14, "\"position\":9223372036854775752");
  forged.replace(forged.find("\"page 3\""), 8, "\"page 144115188075855871\"");
  uint32_t bytes = 0;
  std::memcpy(&bytes, forged.data() + 12, 4);
  bytes += static_cast<uint32_t>(forged.size() - state_.size());
  std::memcpy(forged.data() + 12, &bytes, 4);
  forged = with_checksum(forged);
  EXPECT_EQ(read_state_header(forged.size(), reader_of(forged)).position, 9223372036854775752);
  EXPECT_THAT([&] { state_reader(header(0))(forged); },
              ::testing::ThrowsMessage<StateError>(HasSubstr("export the session instead")));
}

std::string file_of_corpus(const std::string& name) {
  std::ifstream file(std::string(RECURVE_SOURCE_DIR) + "/tests/fuzz/corpus/state_form/" + name,
                     std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Files that tests/weights_tools/state_test.py makes after the description alone.
TEST(PageGroupFiles, AreReadAsTheyAreDescribed) {
  const StateHeader wanted{
      .model = "m",
      .weights = "bf16",
      .chunk = 64,
      .layout = {
          .arrays = {{.name = "n", .shape = {2}},
                     {.name = "K", .layer = 1, .shape = {2}, .growth = StateGrowth::kPerToken}}}};
  const NewImage made = make_image(wanted.layout, 140);
  const std::string state = file_of_corpus("paged.state");
  const auto read_base = [](const PageGroupRef& base, const StateRooms& pages) {
    auto end = static_cast<int64_t>(pages.size());
    for (PageGroupRef at = base; end > 0;) {
      const std::string group = file_of_corpus("state-" + std::to_string(at.id));
      at = read_page_group(group.size(), reader_of(group), at, pages, &end);
    }
  };
  read_state(state.size(), reader_of(state), wanted, made.rooms, read_base);
  for (int64_t t = 0; t < 140; ++t) {
    float key[2];
    std::memcpy(key, made.rooms[1 + static_cast<size_t>(t / 64)].data() + t % 64 * 8, sizeof key);
    EXPECT_THAT(key, ::testing::ElementsAre(2 * t, 2 * t + 1));
  }
}

}  // namespace recurve::page_groups_test

#include "server/prefix/stored_prefixes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "server/prefix/prefix_records.h"
#include "tests/support/engine/recording_folder.h"

namespace recurve::testing::stored_prefixes_test {

using Ids = std::vector<int32_t>;
using Key = StoredPrefixes::Key;

constexpr int kChunk = 4;

Ids text(const std::string& letters) { return {letters.begin(), letters.end()}; }

class StoredPrefixesTest : public ::testing::Test {
 protected:
  // The states themselves are not read.
  StoredPtr state() { return std::make_shared<const StoredState>(store_, ++id_, true); }
  Key key_of(const Ids& ids, std::string_view tenant = "t") {
    return {tenant, prefixes_.hashes_of(ids).back()};
  }
  void put(const Ids& ids, int64_t hits = 0, std::string_view tenant = "t", bool usable = true) {
    const auto tokens = static_cast<int64_t>(ids.size());
    prefixes_.put(key_of(ids, tenant), {.state = state(),
                                        .tokens = tokens,
                                        .gain = tokens,
                                        .hits = hits,
                                        .bytes = 100,
                                        .usable = usable});
  }
  int64_t longest(const Ids& ids, std::string_view tenant = "t") {
    return prefixes_.longest(tenant, prefixes_.hashes_of(ids)).tokens;
  }

  StateStore store_{std::make_unique<RecordingFolder>(std::make_shared<RecordingDisk>()), {}};
  uint64_t id_ = 0;
  StoredPrefixes prefixes_{kChunk, "model"};
};

TEST_F(StoredPrefixesTest, FindsTheLongestOfItsTenant) {
  put(text("aaaa"));
  put(text("aaaabbbbcccc"));
  EXPECT_EQ(longest(text("aaaabbbbccccdddd")), 12);
  EXPECT_EQ(longest(text("aaaabbbbcccx")), 4);
  EXPECT_EQ(longest(text("aaabbbbbcccc")), 0);
  EXPECT_EQ(longest(text("aaa")), 0);
  EXPECT_EQ(longest(text("aaaabbbb"), "u"), 0);
  EXPECT_EQ(longest(text("aaaabbbb"), ""), 0);
  prefixes_.cannot_be_read(key_of(text("aaaabbbbcccc")));
  EXPECT_EQ(longest(text("aaaabbbbcccc")), 4);
  EXPECT_EQ(prefixes_.longest_known("t", prefixes_.hashes_of(text("aaaabbbbcccc"))), 12);
  EXPECT_EQ(prefixes_.states(), 1);
  put(text("aaaabbbbcccc"));
  EXPECT_EQ(longest(text("aaaabbbbcccc")), 12);
}

TEST_F(StoredPrefixesTest, HashesAreThoseOfOtherServersWithTheSameIdentity) {
  const Ids ids = text("aaaabbbbc");
  EXPECT_EQ(StoredPrefixes(kChunk, "model").hashes_of(ids), prefixes_.hashes_of(ids));
  EXPECT_EQ(prefixes_.hashes_of(ids).size(), 2u);
  EXPECT_NE(StoredPrefixes(kChunk, "other").hashes_of(ids)[0], prefixes_.hashes_of(ids)[0]);
  // Of all servers to come, too: what has been written is found by it.
  EXPECT_EQ(prefixes_.hashes_of(ids)[1].text(), "7dd444df19cc4e5f738f6af39f3307cc");
}

TEST_F(StoredPrefixesTest, WhatIsWorthLeastGoesFirstAndWhatIsOfNoUseBeforeThat) {
  put(text("aaaabbbb"), 3);
  put(text("cccc"));
  put(text("ddddeeeeffff"), 9, "t", false);
  put(text("gggghhhh"));
  EXPECT_EQ(prefixes_.bytes(), 400);
  using ::testing::ElementsAre;
  EXPECT_THAT(prefixes_.trim(3, 1000), ElementsAre(key_of(text("ddddeeeeffff"))));
  EXPECT_EQ(prefixes_.least_worth(), 4);
  EXPECT_THAT(prefixes_.trim(9, 250), ElementsAre(key_of(text("cccc"))));
  prefixes_.use(key_of(text("gggghhhh")));
  EXPECT_EQ(prefixes_.least_worth(), 16) << "one use, from the clock on: 4 + 2 x 8 - 4";
  EXPECT_THAT(prefixes_.trim(1, 1000), ElementsAre(key_of(text("gggghhhh"))));
  EXPECT_EQ(longest(text("aaaabbbb")), 8);
  EXPECT_EQ(prefixes_.trim(0, 1000).size(), 1u);
  EXPECT_TRUE(prefixes_.empty());
  EXPECT_EQ(prefixes_.bytes(), 0);
}

TEST_F(StoredPrefixesTest, RecordsAreReadAgain) {
  const Key key = key_of(text("aaaabbbb"), "tenant-1");
  const StoredPrefixes::Entry entry{.state = state(), .tokens = 8, .gain = 4, .hits = 2};
  StateStore::Record record{prefix_record_key(key), prefix_record_text(entry, "model"), {}};
  record.states.push_back(entry.state);
  const auto found = prefix_record_of(record, "model", false).value();
  EXPECT_EQ(found.key, key);
  EXPECT_EQ(found.entry.tokens, 8);
  EXPECT_EQ(found.entry.gain, 4);
  EXPECT_EQ(found.entry.hits, 2);
  EXPECT_TRUE(found.entry.usable);
  EXPECT_FALSE(prefix_record_of(record, "other", false)->entry.usable);
  EXPECT_FALSE(prefix_record_of(record, "model", true)->entry.usable) << "it is a tenant's";
  record.key = prefix_record_key({"", key.hash});
  EXPECT_TRUE(prefix_record_of(record, "model", true)->entry.usable);
  EXPECT_FALSE(prefix_record_of(record, "model", false)->entry.usable) << "it is anybody's";
  for (const std::string bad : {"prefix t", "prefix t/", "prefix t/12", "session t/s",
                                "prefix t/0123456789abcdef0123456789abcdeg"}) {
    record.key = bad;
    EXPECT_FALSE(prefix_record_of(record, "model", false)) << bad;
  }
  record.key = prefix_record_key(key);
  for (const char* bad : {"", "{}", "[1]", R"({"of": "x", "tokens": "8", "gain": 4, "hits": 2})"}) {
    record.text = bad;
    EXPECT_FALSE(prefix_record_of(record, "model", false)) << bad;
  }
}

}  // namespace recurve::testing::stored_prefixes_test

#include "server/session/stored_pages.h"

#include <gtest/gtest.h>

#include "server/storage/file_system.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::stored_pages_test {

constexpr TenantId kTenant = 3;

// A text that is continued twice from the same state: its pages count once until both are gone.
TEST(StoredPages, CountAGroupOnceHoweverManyShareIt) {
  const TempDir dir;
  StateStore store(open_folder(dir.path()), {});
  StateHeader header{.model = "m", .weights = "bf16", .chunk = 8};
  header.layout.arrays = {
      {.name = "n", .shape = {4}},
      {.name = "K", .layer = 1, .shape = {4}, .growth = StateGrowth::kPerToken}};
  const auto page = static_cast<int64_t>(header.layout.page_bytes());
  const NewImage made = make_image(header.layout, 64 * 10);
  const auto commit = [&](const std::string& key, int64_t pages, const StoredPtr& before) {
    header.position = 64 * pages;
    header.id = store.new_id();
    StateStore::Change change{.key = key, .tenant = "t", .states = {header.id}};
    const auto end = made.image->begin() + 1 + pages;
    change.state = {header, std::make_shared<std::vector<StatePiece>>(made.image->begin(), end),
                    before};
    return store.commit({&change, 1})[0].state;
  };
  const StoredPtr parent = commit("a", 3, nullptr);
  const StoredPtr later = commit("b", 5, parent), other = commit("c", 9, parent);

  StoredPages pages;
  const auto expect = [&](int64_t count, int64_t groups) {
    // Twice, as they are in a segment, with their headers.
    EXPECT_GE(pages.bytes(), 2 * page * count);
    EXPECT_LE(pages.bytes(), 2 * (page + 200) * count);
    EXPECT_EQ(pages.bytes(kTenant), pages.bytes());
    EXPECT_GE(pages.memory(), 150 * groups);
    EXPECT_LE(pages.memory(), 400 * groups);
  };
  expect(0, 0);
  pages.add(store, kTenant, store.pages_of(*later));
  expect(5, 2);
  pages.add(store, kTenant, store.pages_of(*later));  // a fork
  expect(5, 2);
  pages.add(store, kTenant, store.pages_of(*other));
  expect(11, 3);
  pages.remove(kTenant, store.pages_of(*later).id);
  expect(11, 3);
  pages.remove(kTenant, store.pages_of(*later).id);
  expect(9, 2);
  EXPECT_EQ(pages.bytes(kTenant + 1), 0);
  pages.remove(kTenant, store.pages_of(*other).id);
  expect(0, 0);
}

}  // namespace recurve::testing::stored_pages_test

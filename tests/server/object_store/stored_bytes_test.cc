// What tenants have in a store, by whichever server.
#include "server/object_store/stored_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/object_store/session_head.h"
#include "tests/server/object_store/faulty_store.h"

namespace recurve::testing::stored_bytes_test {

using std::chrono::hours;
using std::chrono::milliseconds;

class StoredBytesTest : public ::testing::Test {
 protected:
  void put(const std::string& tenant, size_t bytes) {
    at_.put(new_blob_key(tenant), std::string(bytes, 'x'));
  }

  FaultyStore at_;
  StoreUser user_{at_, {.patience = milliseconds(200)}};
  ObjectStore& store_ = user_.store;
  std::string error_;
};

TEST_F(StoredBytesTest, AreThoseOfTheLastListAndWhatWasChangedSince) {
  put("a", 100);
  put("a", 20);
  put("ab", 3000);
  at_.put("sessions/t-a/s-s/head", std::string(500, 'x'));
  StoredBytes bytes(store_, hours(1));
  bytes.add("a", 7);  // it is in the list that follows
  EXPECT_EQ(bytes.of("a", &error_), 120);
  EXPECT_EQ(bytes.of("none", &error_), 0);
  bytes.add("a", 50);
  bytes.add("a", -20);
  bytes.add("ab", 1);
  put("a", 999);  // another server's
  EXPECT_EQ(bytes.of("a", &error_), 150);
  EXPECT_EQ(bytes.of("ab", &error_), 3000);
  StoredBytes fresh(store_, milliseconds(0));
  EXPECT_EQ(fresh.of("a", &error_), 1119);
  fresh.add("a", 5);
  put("a", 1);
  EXPECT_EQ(fresh.of("a", &error_), 1120);
}

TEST_F(StoredBytesTest, AreNotKnownWithoutTheStore) {
  put("a", 100);
  StoredBytes bytes(store_, milliseconds(0));
  EXPECT_EQ(bytes.of("a", &error_), 100);
  at_.fail(1, 1 << 20, FaultyStore::Fault::kForbidden);
  EXPECT_EQ(bytes.of("a", &error_), std::nullopt);
  EXPECT_NE(error_, "");
  EXPECT_THROW(blobs_of_tenants(store_), std::runtime_error);
  at_.fail(1, 0, FaultyStore::Fault::kNone);
  EXPECT_EQ(bytes.of("a", &error_), 100);
}

TEST_F(StoredBytesTest, AreListedByTenant) {
  put("a", 100);
  put("a", 20);
  put("b-c", 3);
  at_.put("blobs/t-d/odd", "x");
  at_.put("blobs/other", "x");
  const auto all = blobs_of_tenants(store_);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all.at("a").bytes, 120);
  EXPECT_EQ(all.at("a").blobs, 2);
  EXPECT_EQ(all.at("b-c").bytes, 3);
}

}  // namespace recurve::testing::stored_bytes_test

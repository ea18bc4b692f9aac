#include "server/http/openai/responses/response_store.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/small_stack.h"

namespace recurve::http_response_store_test {

constexpr int64_t kMost = 64 << 20;

std::vector<ChatMessage> message(size_t bytes) {
  return {{.role = "user", .content = std::string(bytes, 'm')}};
}

// A conversation's turns count as long as its last response is kept, also where their own responses
// have gone.
TEST(ResponseStore, ALongConversationStaysWithinItsBytes) {
  ResponseStore store(kMost);
  std::shared_ptr<const Turn> last;
  for (int i = 0; i < 60; ++i) {
    last = store.make_turn(0, std::exchange(last, nullptr), message(7 << 20));
    const std::string id = "resp_" + std::to_string(i);
    store.put(0, 0, {.id = id, .object = {{"id", id}}, .turn = last});
    if (last->bytes_of_all() > store.most_bytes_of_turns()) last = nullptr;  // it is refused then
    EXPECT_LE(store.bytes(), kMost) << i;
  }
}

TEST(ResponseStore, WhatManyConversationsShareCountsOnce) {
  ResponseStore store(kMost);
  const auto first = store.make_turn(0, nullptr, message(7 << 20));
  for (int i = 0; i < 60; ++i) {
    const std::string id = "resp_" + std::to_string(i);
    const auto gone = store.put(
        0, 0, {.id = id, .object = {{"id", id}}, .turn = store.make_turn(0, first, message(10))});
    EXPECT_TRUE(gone.empty()) << i;
  }
  EXPECT_LT(store.bytes(), 8 << 20);
}

// Who fills the store loses its own: others do not lose theirs, by however many it sends.
TEST(ResponseStore, NoOwnerLosesAnEqualShareToAnother) {
  ResponseStore store(kMost);
  const auto put = [&](TenantId owner, int number, size_t bytes) {
    const std::string id = "resp_" + std::to_string(number);
    auto turn = store.make_turn(owner, nullptr, message(bytes));
    return store.put(owner, owner, {.id = id, .object = {{"id", id}}, .turn = std::move(turn)});
  };
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(put(1, i, 1 << 20).empty());
  for (int i = 0; i < 1000; ++i) {
    for (const auto& [tenant, id] : put(2, i, 1 << 20)) EXPECT_EQ(tenant, 2u) << id;
    EXPECT_LE(store.bytes(), kMost);
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_NE(store.find(1, "resp_" + std::to_string(i), 0), nullptr) << i;
  }
  // What is beyond a share goes again where others come.
  for (int i = 1000; i < 1100; ++i) put(3, i, 1 << 20);
  EXPECT_NE(store.find(2, "resp_999", 0), nullptr);
  EXPECT_NE(store.find(1, "resp_0", 0), nullptr);
  EXPECT_NE(store.find(3, "resp_1099", 0), nullptr);
}

TEST(ResponseStore, AConversationOfAnyLengthCanGo) {
  on_small_stack([] {
    ResponseStore store(kMost);
    std::shared_ptr<const Turn> last;
    for (int i = 0; i < 100'000; ++i) last = store.make_turn(0, std::move(last), message(1));
    last.reset();
    EXPECT_EQ(store.bytes(), 0);
  });
}

}  // namespace recurve::http_response_store_test

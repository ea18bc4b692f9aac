#include "server/http/openai/response_store.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

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
    last = store.make_turn(std::exchange(last, nullptr), message(7 << 20));
    const std::string id = "resp_" + std::to_string(i);
    store.put(0, {.id = id, .object = {{"id", id}}, .turn = last});
    if (last->bytes_of_all() > store.most_bytes_of_turns()) last = nullptr;  // it is refused then
    EXPECT_LE(store.bytes(), kMost) << i;
  }
}

TEST(ResponseStore, WhatManyConversationsShareCountsOnce) {
  ResponseStore store(kMost);
  const auto first = store.make_turn(nullptr, message(7 << 20));
  for (int i = 0; i < 60; ++i) {
    const std::string id = "resp_" + std::to_string(i);
    const auto gone = store.put(
        0, {.id = id, .object = {{"id", id}}, .turn = store.make_turn(first, message(10))});
    EXPECT_TRUE(gone.empty()) << i;
  }
  EXPECT_LT(store.bytes(), 8 << 20);
}

// On a thread with the least stack that there is.
TEST(ResponseStore, AConversationOfAnyLengthCanGo) {
  const auto go = [](void*) -> void* {
    ResponseStore store(kMost);
    std::shared_ptr<const Turn> last;
    for (int i = 0; i < 100'000; ++i) last = store.make_turn(std::move(last), message(1));
    last.reset();
    EXPECT_EQ(store.bytes(), 0);
    return nullptr;
  };
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 << 10);
  pthread_t thread{};
  ASSERT_EQ(pthread_create(&thread, &attributes, go, nullptr), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

}  // namespace recurve::http_response_store_test

#pragma once
#include <gtest/gtest.h>
#include <pthread.h>

#include <functional>

namespace recurve {

// Runs it on a thread with a small stack, of which a recursion that a client can lengthen would
// take all.
inline void on_small_stack(std::function<void()> run, size_t bytes = 256 << 10) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, bytes);
  pthread_t thread{};
  const auto start = [](void* of) -> void* {
    (*static_cast<std::function<void()>*>(of))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, start, &run), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

}  // namespace recurve

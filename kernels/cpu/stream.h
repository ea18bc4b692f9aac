#pragma once
#include "kernels/backend.h"
#include "kernels/cpu/thread_pool.h"

namespace recurve::cpu {

// What the kernels of this folder find behind their Stream: the backend's threads.
class CpuStream : public Stream {
 public:
  explicit CpuStream(ThreadPool& pool) : pool_(pool) {}
  void wait() override {}
  ThreadPool& pool() { return pool_; }

 private:
  ThreadPool& pool_;
};

inline ThreadPool& pool_of(Stream& stream) { return static_cast<CpuStream&>(stream).pool(); }

}  // namespace recurve::cpu

#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include "kernels/backend.h"

namespace recurve {

// Host memory for uploads of one step. The contents must not change until the copies are done;
// reset() frees all of it.
class Staging {
 public:
  explicit Staging(Backend& backend) : backend_(backend) {}

  template <typename T>
  std::span<T> take(size_t count) {
    const size_t bytes = (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    while (at_ < pieces_.size() && pieces_[at_].bytes - used_ < bytes) ++at_, used_ = 0;
    if (at_ == pieces_.size()) {
      const size_t size = std::max(bytes, kPiece);
      pieces_.push_back({backend_.allocate_host(size), size});
    }
    std::byte* memory = pieces_[at_].memory.get() + used_;
    used_ += bytes;
    return {reinterpret_cast<T*>(memory), count};
  }
  void reset() { at_ = used_ = 0; }

 private:
  static constexpr size_t kAlignment = 64, kPiece = size_t{256} << 10;
  struct Piece {
    HostMemory memory;
    size_t bytes;
  };
  Backend& backend_;
  std::vector<Piece> pieces_;
  size_t at_ = 0, used_ = 0;
};

}  // namespace recurve

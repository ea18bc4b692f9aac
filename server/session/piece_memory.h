#pragma once
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "kernels/backend.h"

namespace recurve {

// Memory for pieces of states that are all of one size, outside the heap: what a piece takes is
// known, and the system gets back what is given back. Mapped in blocks of many pieces, as a process
// may have tens of thousands of mappings only; a large one is a block by itself. Outlives its
// pieces, which may go on any thread.
//
// For a device that pins host memory the blocks are pinned, and kept for other pieces until the
// end: what there was once, sessions and marks had reserved.
class PieceMemory {
 public:
  // The backend outlives the memory.
  PieceMemory(Backend& backend, size_t piece_bytes);
  ~PieceMemory();
  PieceMemory(const PieceMemory&) = delete;
  PieceMemory& operator=(const PieceMemory&) = delete;

  // Room for a piece, that goes with its last owner. Throws std::bad_alloc.
  std::shared_ptr<std::byte> take();
  // To be called before a piece is first touched, on any thread, which it may take some time.
  void prepare(std::byte* piece);
  // Whether one large piece, once it goes, leaves its pages to the next one, which finds them
  // mapped: a third of the time to write it. Not unless this says so.
  void keep_spare(bool keep) noexcept;

  int64_t pieces() const {  // that there are
    const std::lock_guard lock(mutex_);
    return pieces_;
  }
  // What each takes, all told but its share of a block not used up.
  static size_t bytes_each(size_t piece_bytes);

 private:
  using Addresses = std::set<std::byte*>;
  struct Block {
    std::vector<uint64_t> used;  // a bit each piece
    size_t pieces = 0;
    size_t first_free = 0;              // of the words of `used`: none before has a free bit
    Addresses::node_type full_in = {};  // its place in with_room_, kept while it has none
    bool prepared = false, pinned = false;
  };
  using Blocks = std::map<std::byte*, Block>;  // by address

  Blocks::iterator add_block();
  Blocks::iterator block_of(std::byte* piece) { return std::prev(blocks_.upper_bound(piece)); }
  size_t block_bytes() const { return pieces_a_block_ * stride_; }
  void give(std::byte* piece) noexcept;
  void unmap(Blocks::iterator block) noexcept;
  void give_pages(const Blocks::value_type& block, size_t index) noexcept;

  Backend& backend_;
  const size_t stride_;
  const size_t pieces_a_block_;
  mutable std::mutex mutex_;  // of all below
  Blocks blocks_;
  Addresses with_room_;  // of the blocks
  int64_t pieces_ = 0;
  bool keeps_spare_ = false;
  std::byte* spare_ = nullptr;  // a block of one piece without it
};

}  // namespace recurve

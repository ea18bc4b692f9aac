#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/state/state_image.h"
#include "server/session/piece_memory.h"

namespace recurve {

// Memory for images of states: that of each piece of the layout is by itself, so that an image may
// keep a piece of another one, and nothing else of it. Outlives its images, which may go on any
// thread.
class ImageMemory {
 public:
  // The backend outlives the memory.
  ImageMemory(Backend& backend, const StateLayout& layout);

  // An image of a state that has absorbed so many tokens, whose pieces go with their last owners.
  // before: of a state that has absorbed before_tokens, one of the two being a beginning of the
  // other: pages that are full in both are shared; null: none. Throws std::bad_alloc.
  NewImage take(int64_t tokens = 0, const StateImage& before = nullptr, int64_t before_tokens = 0);
  // To be called before an image is first touched, on any thread, which it may take some time.
  void prepare(const StateRooms& rooms);
  // See PieceMemory.
  void keep_spare(bool keep) noexcept;

  int64_t bytes() const;  // of the pieces that there are
  // What an image of so many tokens takes, all told but its share of blocks not used up.
  static size_t bytes_each(const StateLayout& layout, int64_t tokens = 0);

 private:
  struct Piece {
    std::string name;
    size_t bytes;
    std::unique_ptr<PieceMemory> memory;
  };
  std::vector<Piece> pieces_;           // of a slot
  std::unique_ptr<PieceMemory> pages_;  // null: states do not grow
  const size_t page_bytes_;
};

}  // namespace recurve

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

  // Room for an image, whose pieces go with their last owners. Throws std::bad_alloc.
  NewImage take();
  // To be called before an image is first touched, on any thread, which it may take some time.
  void prepare(const StateRooms& rooms);
  // See PieceMemory.
  void keep_spare(bool keep) noexcept;

  int64_t bytes() const;  // of the pieces that there are
  // What an image takes, all told but its share of blocks not used up.
  static size_t bytes_each(const StateLayout& layout);

 private:
  struct Piece {
    std::string name;
    size_t bytes;
    std::unique_ptr<PieceMemory> memory;
  };
  std::vector<Piece> pieces_;  // of the layout
};

}  // namespace recurve

#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

namespace recurve {

// A state outside its slot: the arrays of the layout, one after the other, in host memory. Made
// once, never changed; copies share it.
using StateImage = std::shared_ptr<const std::byte>;  // (layout.bytes())

// Memory for images, which are all of one size, outside the heap: what an image takes is known, and
// the system gets back what is given back. Mapped in blocks of many images, as a process may have
// tens of thousands of mappings only. Belongs to one thread; outlives its images.
class ImageMemory {
 public:
  explicit ImageMemory(size_t image_bytes);
  ~ImageMemory();
  ImageMemory(const ImageMemory&) = delete;
  ImageMemory& operator=(const ImageMemory&) = delete;

  // Room for an image, that goes with its last owner. Throws std::bad_alloc.
  std::shared_ptr<std::byte> take();

  int64_t images() const { return images_; }  // that there are
  // What each takes, all told but its share of a block not used up.
  static size_t bytes_each(size_t image_bytes);

 private:
  using Addresses = std::set<std::byte*>;
  struct Block {
    std::vector<uint64_t> used;  // a bit each image
    size_t images = 0;
    size_t first_free = 0;              // of the words of `used`: none before has a free bit
    Addresses::node_type full_in = {};  // its place in with_room_, kept while it has none
  };
  using Blocks = std::map<std::byte*, Block>;  // by address

  Blocks::iterator add_block();
  void give(std::byte* image) noexcept;
  void give_pages(const Blocks::value_type& block, size_t index) noexcept;

  const size_t stride_;
  const size_t images_a_block_;
  Blocks blocks_;
  Addresses with_room_;  // of the blocks
  int64_t images_ = 0;
};

}  // namespace recurve

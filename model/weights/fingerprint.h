#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/weights/tensor_view.h"

namespace recurve {

using Hash128 = std::pair<uint64_t, uint64_t>;

// 32 hexadecimal digits that stand for these texts in this order, their borders included: a hash
// (XXH3, 128 bits), not secure against deliberate collisions.
std::string fingerprint_of(std::span<const std::string> texts);

// Hashes of tensors as they are stored, made of blocks of kBlock bytes: so they do not depend on
// how a tensor was read, nor on the file that it was in.
class TensorHashes {
 public:
  static constexpr size_t kBlock = size_t{4} << 20;

  // Where the hashes of the tensor's blocks go, in order; stays where it is. Empty if they are
  // there already: a tensor that is read twice is hashed once. Empty for some rows of one.
  std::span<Hash128> add(const TensorView& view);

  // From now on no tensor is added: add() gives nothing.
  void leave_out() { left_out_ = true; }

  // One line for each tensor, by name: what it is called, its type, its shape and its hash. To be
  // called when all blocks are there.
  std::vector<std::string> lines() const;

 private:
  struct Entry {
    std::string type_and_shape;
    std::vector<Hash128> blocks;
  };
  std::map<std::string, Entry, std::less<>> entries_;
  bool left_out_ = false;
};

// The hashes of the blocks that the bytes are, on a few threads. blocks: (bytes / kBlock, rounded
// up)
void hash_blocks(std::span<const std::byte> bytes, std::span<Hash128> blocks);

}  // namespace recurve

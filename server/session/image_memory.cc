#include "server/session/image_memory.h"

#include <utility>

#include "kernels/check.h"

namespace recurve {
namespace {

// Of the list of an image's pieces: the shared vector, and what it has on the heap.
constexpr size_t kListBytes = 64;

}  // namespace

ImageMemory::ImageMemory(Backend& backend, const StateLayout& layout) {
  for (StatePieceLayout& piece : layout.pieces()) {
    pieces_.push_back(
        {std::move(piece.name), piece.bytes, std::make_unique<PieceMemory>(backend, piece.bytes)});
  }
}

size_t ImageMemory::bytes_each(const StateLayout& layout) {
  size_t bytes = kListBytes;
  for (const StatePieceLayout& piece : layout.pieces()) {
    bytes += PieceMemory::bytes_each(piece.bytes) + sizeof(StatePiece);
  }
  return bytes;
}

NewImage ImageMemory::take() {
  std::vector<StatePiece> list;
  list.reserve(pieces_.size());
  NewImage made;
  made.rooms.reserve(pieces_.size());
  for (const Piece& piece : pieces_) {
    const std::shared_ptr<std::byte> room = piece.memory->take();
    made.rooms.emplace_back(room.get(), piece.bytes);
    list.push_back({piece.name, room, piece.bytes});
  }
  made.image = std::make_shared<const std::vector<StatePiece>>(std::move(list));
  return made;
}

void ImageMemory::prepare(const StateRooms& rooms) {
  CHECK(rooms.size() == pieces_.size());
  for (size_t p = 0; p < pieces_.size(); ++p) pieces_[p].memory->prepare(rooms[p].data());
}

void ImageMemory::keep_spare(bool keep) noexcept {
  for (const Piece& piece : pieces_) piece.memory->keep_spare(keep);
}

int64_t ImageMemory::bytes() const {
  int64_t bytes = 0;
  for (const Piece& piece : pieces_) {
    bytes += piece.memory->pieces() * static_cast<int64_t>(piece.bytes);
  }
  return bytes;
}

}  // namespace recurve

#include "server/session/image_memory.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace recurve {
namespace {

// Of the list of an image's pieces: the shared vector, and what it has on the heap.
constexpr size_t kListBytes = 64;

}  // namespace

ImageMemory::ImageMemory(Backend& backend, const StateLayout& layout)
    : page_bytes_(layout.page_bytes()) {
  if (layout.grows()) pages_ = std::make_unique<PieceMemory>(backend, page_bytes_);
  for (StatePieceLayout& piece : layout.pieces()) {
    pieces_.push_back(
        {std::move(piece.name), piece.bytes, std::make_unique<PieceMemory>(backend, piece.bytes)});
  }
}

size_t ImageMemory::bytes_each(const StateLayout& layout, int64_t tokens) {
  size_t bytes = kListBytes;
  for (const StatePieceLayout& piece : layout.pieces(tokens)) {
    bytes += PieceMemory::bytes_each(piece.bytes) + sizeof(StatePiece);
  }
  return bytes;
}

NewImage ImageMemory::take(int64_t tokens, const StateImage& before, int64_t before_tokens) {
  const auto pages = pages_ ? static_cast<size_t>(StateLayout::pages(tokens)) : 0;
  const auto full = before ? static_cast<size_t>(std::min(tokens, before_tokens) / kPageTokens) : 0;
  std::vector<StatePiece> list;
  list.reserve(pieces_.size() + pages);
  NewImage made;
  made.rooms.reserve(pieces_.size() + pages);
  const auto add = [&](std::string name, PieceMemory& memory, size_t bytes) {
    const std::shared_ptr<std::byte> piece = memory.take();
    made.rooms.emplace_back(piece.get(), bytes);
    list.push_back({std::move(name), piece, bytes});
  };
  for (const Piece& piece : pieces_) add(piece.name, *piece.memory, piece.bytes);
  for (size_t p = 0; p < pages; ++p) {
    if (p >= full) {
      add(page_name(static_cast<int64_t>(p)), *pages_, page_bytes_);
      continue;
    }
    list.push_back((*before)[pieces_.size() + p]);
    made.rooms.emplace_back();
  }
  made.image = std::make_shared<const std::vector<StatePiece>>(std::move(list));
  return made;
}

void ImageMemory::prepare(const StateRooms& rooms) {
  CHECK(rooms.size() >= pieces_.size());
  for (size_t p = 0; p < rooms.size(); ++p) {
    PieceMemory& memory = p < pieces_.size() ? *pieces_[p].memory : *pages_;
    if (!rooms[p].empty()) memory.prepare(rooms[p].data());
  }
}

void ImageMemory::keep_spare(bool keep) noexcept {
  for (const Piece& piece : pieces_) piece.memory->keep_spare(keep);
}

int64_t ImageMemory::bytes() const {
  int64_t bytes = pages_ ? pages_->pieces() * static_cast<int64_t>(page_bytes_) : 0;
  for (const Piece& piece : pieces_) {
    bytes += piece.memory->pieces() * static_cast<int64_t>(piece.bytes);
  }
  return bytes;
}

}  // namespace recurve

#include "server/session/piece_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "kernels/check.h"

namespace recurve {
namespace {

constexpr size_t kPage = 4096, kLine = 64;
// Large pieces are on huge pages, where the system has them: there are fewer
// pages to be mapped while they are first written.
constexpr size_t kHugePage = size_t{2} << 20, kHugeFrom = 8 * kHugePage;
constexpr size_t kBlockBytes = size_t{32} << 20;
// A shared pointer's own, with what the heap adds.
constexpr size_t kOwnerBytes = 64;

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// Whole pages, so that a piece alone can be given back, unless many fit on a page.
size_t stride_of(size_t piece_bytes) {
  const size_t lines = round_up(std::max<size_t>(piece_bytes, 1), kLine);
  if (lines < kPage) return lines;
  return round_up(lines, lines < kHugeFrom ? kPage : kHugePage);
}

}  // namespace

PieceMemory::PieceMemory(Backend& backend, size_t piece_bytes)
    : backend_(backend),
      stride_(stride_of(piece_bytes)),
      pieces_a_block_(std::max<size_t>(kBlockBytes / stride_, 1)) {}

PieceMemory::~PieceMemory() {
  CHECK(pieces_ == 0);
  for (const auto& [memory, block] : blocks_) {
    if (block.pinned) backend_.unpin(memory);
    munmap(memory, block_bytes());
  }
}

size_t PieceMemory::bytes_each(size_t piece_bytes) { return stride_of(piece_bytes) + kOwnerBytes; }

std::shared_ptr<std::byte> PieceMemory::take() {
  std::unique_lock lock(mutex_);
  std::byte* const spare = std::exchange(spare_, nullptr);
  const auto at = with_room_.empty() ? add_block()
                                     : blocks_.find(spare != nullptr ? spare : *with_room_.begin());
  Block& block = at->second;
  size_t& word = block.first_free;
  while (block.used[word] == ~uint64_t{0}) ++word;
  const auto bit = static_cast<size_t>(std::countr_one(block.used[word]));
  block.used[word] |= uint64_t{1} << bit;
  ++pieces_;
  if (++block.pieces == pieces_a_block_) block.full_in = with_room_.extract(at->first);
  std::byte* const piece = at->first + (64 * word + bit) * stride_;
  lock.unlock();
  // Gives the memory back where there is none for the pointer's own.
  return {piece, [this](std::byte* gone) { give(gone); }};
}

void PieceMemory::prepare(std::byte* piece) {
  if (!backend_.pins_host_memory()) return;
  std::unique_lock lock(mutex_);
  auto& [memory, block] = *block_of(piece);
  if (block.prepared) return;
  block.prepared = true;
  lock.unlock();  // the piece keeps the block
  const bool pinned = backend_.pin(memory, block_bytes());
  lock.lock();
  block.pinned = pinned;
}

PieceMemory::Blocks::iterator PieceMemory::add_block() {
  void* memory = mmap(nullptr, block_bytes(), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  if (stride_ >= kHugeFrom) madvise(memory, block_bytes(), MADV_HUGEPAGE);
  auto* const address = static_cast<std::byte*>(memory);
  try {
    Block block{.used = std::vector<uint64_t>((pieces_a_block_ + 63) / 64)};
    // Those beyond the last piece are never free.
    if (pieces_a_block_ % 64 != 0) block.used.back() = ~uint64_t{0} << (pieces_a_block_ % 64);
    with_room_.insert(address);
    return blocks_.emplace(address, std::move(block)).first;
  } catch (...) {
    with_room_.erase(address);
    munmap(memory, block_bytes());
    throw;
  }
}

void PieceMemory::give(std::byte* piece) noexcept {
  const std::lock_guard lock(mutex_);
  const auto at = block_of(piece);
  Block& block = at->second;
  const size_t index = static_cast<size_t>(piece - at->first) / stride_;
  block.used[index / 64] &= ~(uint64_t{1} << (index % 64));
  block.first_free = std::min(block.first_free, index / 64);
  --pieces_;
  if (block.pieces-- == pieces_a_block_) with_room_.insert(std::move(block.full_in));
  if (block.prepared) return;
  if (block.pieces > 0) return give_pages(*at, index);
  if (!keeps_spare_ || spare_ != nullptr || pieces_a_block_ > 1) return unmap(at);
  spare_ = at->first;
}

void PieceMemory::keep_spare(bool keep) noexcept {
  const std::lock_guard lock(mutex_);
  keeps_spare_ = keep;
  if (!keep && spare_ != nullptr) unmap(blocks_.find(std::exchange(spare_, nullptr)));
}

void PieceMemory::unmap(Blocks::iterator block) noexcept {
  std::byte* const memory = block->first;
  with_room_.erase(memory);
  blocks_.erase(block);
  munmap(memory, block_bytes());
}

// Those of the piece that no other piece is on.
void PieceMemory::give_pages(const Blocks::value_type& at, size_t index) noexcept {
  const auto& [memory, block] = at;
  const auto none_on = [&](size_t from, size_t to) {  // bytes of the block
    const size_t end = std::min((to + stride_ - 1) / stride_, pieces_a_block_);
    for (size_t i = from / stride_; i < end; ++i) {
      if ((block.used[i / 64] >> (i % 64) & 1) != 0) return false;
    }
    return true;
  };
  const size_t first = index * stride_, last = first + stride_;
  const size_t page = first / kPage * kPage, page_after = round_up(last, kPage);
  const size_t from = none_on(page, first) ? page : round_up(first, kPage);
  const size_t to = none_on(last, page_after) ? page_after : last / kPage * kPage;
  if (from < to) madvise(memory + from, to - from, MADV_DONTNEED);
}

}  // namespace recurve

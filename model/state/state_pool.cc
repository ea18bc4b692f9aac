#include "model/state/state_pool.h"

#include "kernels/check.h"

namespace recurve {

StateSlot::~StateSlot() {
  if (pool_ != nullptr) pool_->free_.push_back(id_);
}

StatePool::StatePool(Backend& backend, const StateLayout& layout, int slots, Stream& stream)
    : backend_(backend), stream_(stream), layout_(layout), slots_(slots) {
  for (const StateArray& array : layout.arrays) {
    arrays_.push_back(backend.allocate(array.bytes() * static_cast<size_t>(slots + 1)));
  }
  for (int32_t id = slots; id > 0; --id) free_.push_back(id);
}

std::optional<StateSlot> StatePool::acquire() {
  if (free_.empty()) return std::nullopt;
  StateSlot slot(this, free_.back());
  free_.pop_back();
  for (size_t a = 0; a < arrays_.size(); ++a) {
    backend_.zero(row(a, slot.id()), layout_.arrays[a].bytes(), stream_);
  }
  return slot;
}

void StatePool::copy(const StateSlot& from, const StateSlot& to) {
  for (size_t a = 0; a < arrays_.size(); ++a) {
    backend_.copy(row(a, to.id()), row(a, from.id()), layout_.arrays[a].bytes(), stream_);
  }
}

void StatePool::save(const StateSlot& slot, std::span<std::byte> image) {
  CHECK(image.size() == layout_.bytes());
  std::byte* to = image.data();
  for (size_t a = 0; a < arrays_.size(); ++a) {
    backend_.download(to, row(a, slot.id()), layout_.arrays[a].bytes(), stream_);
    to += layout_.arrays[a].bytes();
  }
  stream_.wait();
}

void StatePool::load(std::span<const std::byte> image, const StateSlot& slot) {
  CHECK(image.size() == layout_.bytes());
  const std::byte* from = image.data();
  for (size_t a = 0; a < arrays_.size(); ++a) {
    backend_.upload(row(a, slot.id()), from, layout_.arrays[a].bytes(), stream_);
    from += layout_.arrays[a].bytes();
  }
  stream_.wait();
}

}  // namespace recurve

#include "model/state/state_pool.h"

#include <algorithm>

namespace recurve {

StateSlot::~StateSlot() {
  if (pool_ != nullptr) pool_->free_.push_back(id_);
}

StatePool::StatePool(Backend& backend, const StateLayout& layout, int slots, Stream& stream,
                     std::function<void()> on_copied)
    : backend_(backend),
      stream_(stream),
      layout_(layout),
      pieces_(layout.pieces()),
      slots_(slots),
      last_copy_(static_cast<size_t>(slots) + 1) {
  CHECK(!layout.grows());
  for (const StateArray& array : layout.arrays) {
    arrays_.push_back(backend.allocate(array.bytes() * static_cast<size_t>(slots + 1)));
  }
  free_.reserve(static_cast<size_t>(slots));
  for (int32_t id = slots; id > 0; --id) free_.push_back(id);
  if (backend.hands_over_copies(layout.bytes())) {
    copier_ = std::make_unique<Copier>(backend, std::move(on_copied));
  }
}

// What is done within the device goes on the stream where states are small, or where the device
// does it on its own between two steps; so in copy().
std::optional<StateSlot> StatePool::acquire() {
  std::optional<StateSlot> slot = acquire_unset();
  if (!slot) return slot;
  if (copier_ == nullptr || (backend_.queues() && ready(*slot))) {
    for (size_t a = 0; a < arrays_.size(); ++a) {
      backend_.zero(row(a, slot->id()), layout_.arrays[a].bytes(), stream_);
    }
    return slot;
  }
  Copier::Job zero;
  for (size_t a = 0; a < arrays_.size(); ++a) {
    zero.pieces.push_back({row(a, slot->id()), nullptr, layout_.arrays[a].bytes()});
  }
  copy_beside(*slot, std::move(zero));
  return slot;
}

std::optional<StateSlot> StatePool::acquire_unset() {
  if (free_.empty()) return std::nullopt;
  const auto copied = [&](int32_t id) {
    return copier_ == nullptr || copier_->done(last_copy_[static_cast<size_t>(id)]);
  };
  const auto ready = std::find_if(free_.rbegin(), free_.rend(), copied);
  if (ready != free_.rend()) std::swap(*ready, free_.back());
  StateSlot slot(this, free_.back());
  free_.pop_back();
  return slot;
}

void StatePool::copy(const StateSlot& from, const StateSlot& to) {
  if (copier_ == nullptr || (backend_.queues() && ready(from) && ready(to))) {
    for (size_t a = 0; a < arrays_.size(); ++a) {
      backend_.copy(row(a, to.id()), row(a, from.id()), layout_.arrays[a].bytes(), stream_);
    }
    return;
  }
  Copier::Job job;
  for (size_t a = 0; a < arrays_.size(); ++a) {
    job.pieces.push_back({row(a, to.id()), row(a, from.id()), layout_.arrays[a].bytes()});
  }
  copy_beside(to, std::move(job));
  last_copy(from) = last_copy(to);
}

void StatePool::save(const StateSlot& slot, const NewImage& image, std::function<void()> prepare) {
  Copier::Job job{.before = std::move(prepare)};
  const StateRooms arrays = spans_of_arrays(layout_, pieces_, image.rooms);
  for (size_t a = 0; a < arrays.size(); ++a) {
    job.pieces.push_back({arrays[a].data(), row(a, slot.id()), arrays[a].size()});
  }
  if (copier_ != nullptr) {
    job.keeps = image.image;
    return copy_beside(slot, std::move(job));
  }
  if (job.before) job.before();
  for (const CopyPiece& piece : job.pieces) {
    backend_.download(piece.to, piece.from, piece.bytes, stream_);
  }
  stream_.wait();
}

void StatePool::load(StateImage image, const StateSlot& slot) {
  Copier::Job job;
  const auto arrays = spans_of_arrays(layout_, pieces_, spans_of(image));
  for (size_t a = 0; a < arrays.size(); ++a) {
    job.pieces.push_back({row(a, slot.id()), arrays[a].data(), arrays[a].size()});
  }
  if (copier_ != nullptr) {
    job.keeps = std::move(image);
    return copy_beside(slot, std::move(job));
  }
  for (const CopyPiece& piece : job.pieces) {
    backend_.upload(piece.to, piece.from, piece.bytes, stream_);
  }
  stream_.wait();
}

void StatePool::copy_beside(const StateSlot& slot, Copier::Job job) {
  last_copy(slot) = copier_->start(std::move(job), stream_);
}

bool StatePool::ready(const StateSlot& slot) const {
  return copier_ == nullptr || copier_->done(last_copy_[index_of(slot)]);
}

void StatePool::wait_until_ready(const StateSlot& slot) {
  if (copier_ != nullptr) copier_->wait(last_copy(slot));
}

bool StatePool::copying() const { return copier_ != nullptr && !copier_->done(copier_->last()); }

void StatePool::wait_for_copies() noexcept {
  if (copier_ != nullptr) copier_->wait_for_all();
}

}  // namespace recurve

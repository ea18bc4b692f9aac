#include "model/state/state_pool.h"

#include <algorithm>

namespace recurve {

namespace {

int32_t most_pages(const StateLayout& layout, const PageLimits& limits) {
  return layout.grows() ? static_cast<int32_t>(StateLayout::pages(limits.most_tokens)) : 0;
}

}  // namespace

StateSlot::~StateSlot() {
  if (pool_ != nullptr) pool_->give_back(id_);
}

StatePool::StatePool(Backend& backend, const StateLayout& layout, int slots, Stream& stream,
                     std::function<void()> on_copied, PageLimits pages)
    : backend_(backend),
      stream_(stream),
      layout_(layout),
      pieces_(layout.pieces()),
      slots_(slots),
      page_bytes_(layout.page_bytes()),
      table_(slots, layout.grows() ? pages.pages : 0, most_pages(layout, pages)),
      last_copy_(static_cast<size_t>(slots) + 1) {
  size_t in_page = 0;
  for (const StateArray& array : layout.arrays) {
    in_page_.push_back(in_page);
    if (array.per_token()) {
      in_page += array.bytes() * kPageTokens;
      arrays_.emplace_back();
    } else {
      arrays_.push_back(backend.allocate(array.bytes() * static_cast<size_t>(slots + 1)));
    }
  }
  if (layout.grows()) {
    const auto count = static_cast<size_t>(table_.pages()) + 1;
    page_memory_ = backend.allocate(count * page_bytes_);
    table_memory_ = backend.allocate(static_cast<size_t>(slots + 1) *
                                     static_cast<size_t>(table_.most()) * sizeof(int32_t));
  }
  free_.reserve(static_cast<size_t>(slots));
  for (int32_t id = slots; id > 0; --id) free_.push_back(id);
  if (backend.hands_over_copies(layout.bytes() + page_bytes_)) {
    copier_ = std::make_unique<Copier>(backend, std::move(on_copied));
  }
}

void StatePool::give_back(int32_t slot) {
  truncate_pages(slot, 0);
  free_.push_back(slot);
}

// What is done within the device goes on the stream where states are small, or where the device
// does it on its own between two steps; so in copy().
std::optional<StateSlot> StatePool::acquire() {
  std::optional<StateSlot> slot = acquire_unset();
  if (!slot) return slot;
  std::vector<CopyPiece> zeros;
  for_each_array(
      [&](size_t a) { zeros.push_back({row(a, slot->id()), nullptr, layout_.arrays[a].bytes()}); });
  within_device(std::move(zeros), *slot, *slot);
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

void StatePool::copy(const StateSlot& from, const StateSlot& to, int64_t tokens) {
  std::vector<CopyPiece> pieces;
  for_each_array([&](size_t a) {
    pieces.push_back({row(a, to.id()), row(a, from.id()), layout_.arrays[a].bytes()});
  });
  if (const auto full = static_cast<size_t>(tokens / kPageTokens);
      layout_.grows() && tokens % kPageTokens > 0) {
    pieces.push_back(
        {page(table_.of(to.id())[full]), page(table_.of(from.id())[full]), page_bytes_});
  }
  within_device(std::move(pieces), from, to);
}

void StatePool::within_device(std::vector<CopyPiece> pieces, const StateSlot& from,
                              const StateSlot& to) {
  if (copier_ == nullptr || (backend_.queues() && ready(from) && ready(to))) {
    for (const CopyPiece& piece : pieces) {
      if (piece.from == nullptr) {
        backend_.zero(piece.to, piece.bytes, stream_);
      } else {
        backend_.copy(piece.to, piece.from, piece.bytes, stream_);
      }
    }
    return;
  }
  copy_beside(to, {.pieces = std::move(pieces)});
  last_copy(from) = last_copy(to);
}

// Which memory of the slot each piece of an image is of. fixed: of the arrays that do not grow.
template <typename Byte, typename Visit>
void StatePool::for_each_place(const StateSlot& slot, const std::vector<std::span<Byte>>& image,
                               Visit visit) const {
  CHECK(image.size() >= pieces_.size());
  const auto fixed = image.begin() + static_cast<ptrdiff_t>(pieces_.size());
  const auto arrays = spans_of_arrays(layout_, pieces_, std::vector(image.begin(), fixed));
  for_each_array([&](size_t a) {
    if (!arrays[a].empty()) visit(arrays[a], row(a, slot.id()));
  });
  const std::span<const int32_t> pages = table_.of(slot.id());
  CHECK(image.size() - pieces_.size() <= pages.size());
  for (size_t p = 0; p + pieces_.size() < image.size(); ++p) {
    const std::span<Byte> there = image[pieces_.size() + p];
    CHECK(there.empty() || there.size() == page_bytes_);
    if (!there.empty()) visit(there, page(pages[p]));
  }
}

void StatePool::save(const StateSlot& slot, const NewImage& image, std::function<void()> prepare) {
  Copier::Job job{.before = std::move(prepare)};
  for_each_place(slot, image.rooms, [&](std::span<std::byte> there, std::byte* here) {
    job.pieces.push_back({there.data(), here, there.size()});
  });
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
  for_each_place(slot, spans_of(image), [&](std::span<const std::byte> there, std::byte* here) {
    job.pieces.push_back({here, there.data(), there.size()});
  });
  if (copier_ != nullptr) {
    job.keeps = std::move(image);
    return copy_beside(slot, std::move(job));
  }
  for (const CopyPiece& piece : job.pieces) {
    backend_.upload(piece.to, piece.from, piece.bytes, stream_);
  }
  stream_.wait();
}

PagedData StatePool::paged(size_t index) const {
  return {.data = page_memory_.data() + in_page_[index],
          .dtype = layout_.arrays[index].dtype,
          .page_bytes = static_cast<int64_t>(page_bytes_),
          .table = table_memory_.as<const int32_t>(),
          .most = table_.most(),
          .pages = table_.pages() + 1};
}

int32_t StatePool::free_pages() {
  table_.reclaim([this](uint64_t ticket) { return copied(ticket); });
  return table_.free_pages();
}

int32_t StatePool::missing_pages(const StateSlot& slot, int64_t from, int64_t tokens) const {
  if (!layout_.grows()) return 0;
  const std::span<const int32_t> pages = table_.of(slot.id());
  const auto first = static_cast<size_t>(from / kPageTokens);
  const int64_t more = StateLayout::pages(tokens) - static_cast<int64_t>(pages.size());
  const bool to_own = first < pages.size() && table_.shared(pages[first]);
  return static_cast<int32_t>(std::max<int64_t>(more, 0)) + (to_own ? 1 : 0);
}

bool StatePool::grow(const StateSlot& slot, int64_t from, int64_t tokens) {
  if (!layout_.grows()) return true;
  const int32_t missing = missing_pages(slot, from, tokens);
  if (missing > 0 && missing > free_pages()) return false;
  const auto first = static_cast<int32_t>(from / kPageTokens);
  if (first < pages_of(slot)) {
    const PageTable::Own own = table_.own(slot.id(), first);
    if (own.to > 0) within_device({{page(own.to), page(own.from), page_bytes_}}, slot, slot);
  }
  CHECK(table_.grow(slot.id(), static_cast<int32_t>(StateLayout::pages(tokens))));
  for (int64_t p = StateLayout::pages(from); p < StateLayout::pages(tokens); ++p) {
    std::byte* const entered = page(table_.of(slot.id())[static_cast<size_t>(p)]);
    backend_.zero(entered, page_bytes_, stream_);
  }
  return true;
}

bool StatePool::reserve(const StateSlot& slot, int64_t tokens) {
  if (!layout_.grows()) return true;
  free_pages();
  return table_.grow(slot.id(), static_cast<int32_t>(StateLayout::pages(tokens)));
}

bool StatePool::share_pages(const StateSlot& from, const StateSlot& to, int64_t tokens) {
  if (!layout_.grows()) return true;
  const bool part = tokens % kPageTokens > 0;
  if (part && free_pages() < 1) return false;
  const auto full = static_cast<int32_t>(tokens / kPageTokens);
  table_.share(from.id(), to.id(), full);
  return !part || table_.grow(to.id(), full + 1);
}

void StatePool::truncate(const StateSlot& slot, int64_t tokens) {
  truncate_pages(slot.id(), static_cast<int32_t>(StateLayout::pages(tokens)));
}

// Copies from these pages that were asked for may still be under way.
void StatePool::truncate_pages(int32_t slot, int32_t count) {
  table_.hold_until(asked());
  table_.shrink(slot, count);
}

size_t StatePool::table_words() const {
  size_t words = 0;
  for (const int32_t slot : table_.changed()) words += table_.of(slot).size();
  return words;
}

void StatePool::send_table(std::span<int32_t> staged) {
  for (const int32_t slot : table_.take_changed()) {
    const std::span<const int32_t> pages = table_.of(slot);
    const std::span<int32_t> row = staged.first(pages.size());
    staged = staged.subspan(pages.size());
    std::ranges::copy(pages, row.begin());
    backend_.upload(table_memory_.as<int32_t>() + static_cast<ptrdiff_t>(slot) * table_.most(),
                    row.data(), row.size_bytes(), stream_);
  }
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

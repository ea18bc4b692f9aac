// A store of states: what becomes of files that nobody wants any more.
#include <algorithm>

#include "server/storage/file_names.h"
#include "server/storage/state_store.h"

namespace recurve {

StoredState::~StoredState() { store_.let_go(id_); }

void StateStore::let_go(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto at = places_.find(id);
  if (at != places_.end() && --at->second.handles == 0) let_go_.push_back(id);
}

void StateStore::forget(Places::iterator at) {
  const Place& place = at->second;
  if (place.segment == 0) {
    if (!place.missing) to_remove_.emplace_back(file_name(kStateFile, at->first), place.bytes);
  } else if (const auto segment = segments_.find(place.segment); segment != segments_.end()) {
    segment->second.live -= place.bytes;
  }
  places_.erase(at);
}

bool StateStore::tidy(Hurry hurry) {
  // A journal whose end is unknown may name what nobody wants.
  try {
    if (!lost().empty()) return false;
    if (journal_ == nullptr) begin_journal();
  } catch (const std::exception&) {
    return false;
  }
  uint64_t sparse = 0;
  std::vector<std::pair<std::string, uint64_t>> removed;
  {
    const std::lock_guard lock(mutex_);
    for (const uint64_t id : std::exchange(let_go_, {})) {
      const auto at = places_.find(id);
      if (at == places_.end() || at->second.records > 0 || at->second.handles > 0) continue;
      forget(at);
    }
    uint64_t most = 0;
    for (auto at = segments_.begin(); at != segments_.end();) {
      const auto& [number, segment] = *at;
      const bool open = segment_ && number == segment_number_;
      if (segment.live == 0 && !open) {
        removed.emplace_back(file_name(kSegmentFile, number), segment.bytes);
        at = segments_.erase(at);
        continue;
      }
      const uint64_t dead = segment.bytes - segment.live;
      const bool worth = (hurry == Hurry::kFull ? 4 : 2) * dead >= segment.bytes;
      if (!open && worth && dead > most) sparse = number, most = dead;
      ++at;
    }
    removed.insert(removed.end(), to_remove_.begin(), to_remove_.end());
    to_remove_.clear();
  }
  for (const auto& [name, bytes] : removed) remove_file(name, bytes);
  return (sparse > 0 && compact(sparse)) || !removed.empty();
}

// What is still wanted of a segment is written behind the last one; then nobody wants the segment.
// Where that fails, all stays where it was.
bool StateStore::compact(uint64_t number) {
  std::vector<std::pair<uint64_t, Place>> moved;
  std::shared_ptr<const FileSystem::Reader> reader;
  try {
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [id, place] : places_) {
        if (place.segment == number && !place.missing) moved.emplace_back(id, place);
      }
      reader = segment_reader(number);
    }
    std::string entries;
    leave_full_segment();
    for (auto& [id, place] : moved) {
      const uint64_t offset = place.offset;
      place = place_in_segment(place.bytes, place.durable);
      segment_->append_from(*reader, offset, place.bytes);
      if (place.durable) write_location(id, place, &entries);
    }
    sync_segment();
    if (folder_dirty_) files_->sync_folder();
    folder_dirty_ = false;
    if (!entries.empty()) append_to_journal(entries);
  } catch (const std::exception&) {
    segment_.reset();
    segment_dirty_ = false;
    return false;
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [id, place] : moved) {
    Place& at = places_.at(id);
    segments_[number].live -= at.bytes;
    segments_[place.segment].live += place.bytes;
    at.segment = place.segment;
    at.offset = place.offset;
  }
  return true;
}

// A file that cannot be removed now is swept at the next start.
void StateStore::remove_file(const std::string& name, uint64_t bytes) {
  try {
    files_->remove(name);
  } catch (const std::exception&) {
    return;
  }
  const std::lock_guard lock(mutex_);
  usage_.bytes -= std::min(bytes, usage_.bytes);
}

}  // namespace recurve

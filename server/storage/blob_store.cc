#include "server/storage/blob_store.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <system_error>
#include <utility>

#include "server/state/state_form.h"

namespace recurve {
namespace {

[[noreturn]] void refuse_gone() {
  throw StateError(EndReason::kStateLost, "its file is missing or truncated");
}

// A range of bytes of a file.
class PartOfFile final : public FileSystem::Reader {
 public:
  PartOfFile(std::shared_ptr<const FileSystem::Reader> file, uint64_t offset, uint64_t bytes)
      : file_(std::move(file)), offset_(offset), bytes_(bytes) {}
  uint64_t bytes() const override { return bytes_; }
  void read(uint64_t offset, std::span<std::byte> to) const override {
    file_->read(offset_ + offset, to);
  }

 private:
  const std::shared_ptr<const FileSystem::Reader> file_;
  const uint64_t offset_, bytes_;
};

}  // namespace

// A group has one sync. The lasting blobs of the previous segment have been synced.
void BlobStore::begin_group() {
  const std::lock_guard lock(mutex_);
  if (segment_ && segments_[segment_number_].bytes < options_.segment_bytes) return;
  segment_.reset();
  segment_changed_ = false;
}

void BlobStore::put(uint64_t id, const std::string& tenant, std::span<const std::string_view> parts,
                    bool lasting) {
  uint64_t bytes = 0;
  for (const std::string_view part : parts) bytes += part.size();
  files_.check_capacity(bytes);
  files_.system().prepare_for(tenant);
  Blob blob;
  if (bytes >= options_.own_file) {
    blob = put_in_file(id, tenant, parts, bytes, lasting);
  } else {
    try {
      blob = place_in_segment(bytes, lasting);
      segment_->append_of(tenant, parts);
    } catch (const std::exception& error) {
      give_up_segment(error.what());
      throw;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    blobs_[id] = blob;
    if (blob.segment > 0) segments_[blob.segment].live += bytes;
  }
  if (lasting) unsynced_.push_back(id);
}

BlobStore::Blob BlobStore::put_in_file(uint64_t id, const std::string& tenant,
                                       std::span<const std::string_view> parts, uint64_t bytes,
                                       bool lasting) {
  const std::string name = file_name(kStateFile, id);
  uint64_t counted = 0;
  try {
    const auto writer = files_.create(name);
    files_.add_bytes(counted = bytes);
    writer->append_of(tenant, parts);
    if (lasting) files_.sync(*writer);
  } catch (const std::exception&) {
    files_.remove_later(name, counted);
    throw;
  }
  return {.bytes = bytes, .lasting = lasting};
}

// The location of the next bytes that are appended to the open segment.
BlobStore::Blob BlobStore::place_in_segment(uint64_t bytes, bool lasting) {
  open_segment();
  segment_changed_ = true;
  files_.add_bytes(bytes);
  const std::lock_guard lock(mutex_);
  Segment& segment = segments_[segment_number_];
  const uint64_t offset = segment.bytes;
  segment.bytes += bytes;
  return {.segment = segment_number_, .offset = offset, .bytes = bytes, .lasting = lasting};
}

void BlobStore::open_segment() {
  if (segment_) return;
  ++segment_number_;
  const std::string name = file_name(kSegmentFile, segment_number_);
  segment_ = files_.create(name);
  const std::lock_guard lock(mutex_);
  segments_[segment_number_].reader = files_.system().open(name);
}

// What was appended to the segment since its last sync is unknown, so its lasting blobs are not
// certain.
void BlobStore::give_up_segment(const char* why) {
  segment_.reset();
  segment_changed_ = false;
  const std::lock_guard lock(mutex_);
  for (const uint64_t id : unsynced_) {
    if (blobs_.at(id).segment == segment_number_) unsure_.try_emplace(id, why);
  }
}

std::map<uint64_t, std::string> BlobStore::sync() {
  try {
    if (segment_ && segment_changed_) files_.sync(*segment_);
    segment_changed_ = false;
  } catch (const std::exception& error) {
    give_up_segment(error.what());
  }
  try {
    files_.sync_changed_names();
  } catch (const std::exception& error) {
    for (const uint64_t id : unsynced_) unsure_.try_emplace(id, error.what());
  }
  unsynced_.clear();
  return std::exchange(unsure_, {});
}

void BlobStore::remove(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = blobs_.find(id);
  if (found == blobs_.end()) return;
  const Blob& blob = found->second;
  if (blob.segment == 0) {
    if (!blob.missing) files_.remove_later(file_name(kStateFile, id), blob.bytes);
  } else if (const auto segment = segments_.find(blob.segment); segment != segments_.end()) {
    segment->second.live -= blob.bytes;
  }
  blobs_.erase(found);
}

bool BlobStore::tidy(bool full, const Record& record) {
  uint64_t sparse = 0;
  {
    const std::lock_guard lock(mutex_);
    uint64_t most = 0;
    for (auto at = segments_.begin(); at != segments_.end();) {
      const auto& [number, segment] = *at;
      const bool open = segment_ && number == segment_number_;
      if (segment.live == 0 && !open) {
        files_.remove_later(file_name(kSegmentFile, number), segment.bytes);
        at = segments_.erase(at);
        continue;
      }
      const uint64_t dead = segment.bytes - segment.live;
      const bool worth = (full ? 4 : 2) * dead >= segment.bytes;
      if (!open && worth && dead > most) sparse = number, most = dead;
      ++at;
    }
  }
  const bool removed = files_.remove_unwanted();
  return (sparse > 0 && compact(sparse, record)) || removed;
}

// Appends the used blobs of a segment to the open one; then the segment is unused. If that fails,
// everything stays where it was.
bool BlobStore::compact(uint64_t number, const Record& record) {
  std::vector<std::pair<uint64_t, Blob>> moved;
  try {
    ReaderPtr reader;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [id, blob] : blobs_) {
        if (blob.segment == number && !blob.missing) moved.emplace_back(id, blob);
      }
      reader = segment_reader(number);
    }
    std::vector<StateLocation> lasting;
    begin_group();
    for (auto& [id, blob] : moved) {
      const uint64_t offset = blob.offset;
      blob = place_in_segment(blob.bytes, blob.lasting);
      segment_->append_from(*reader, offset, blob.bytes);
      if (blob.lasting) lasting.push_back({id, blob.segment, blob.offset, blob.bytes});
    }
    if (segment_ && segment_changed_) files_.sync(*segment_);
    segment_changed_ = false;
    files_.sync_changed_names();
    if (!lasting.empty()) record(lasting);
  } catch (const std::exception&) {
    segment_.reset();
    segment_changed_ = false;
    return false;
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [id, blob] : moved) {
    Blob& at = blobs_.at(id);
    segments_[number].live -= at.bytes;
    segments_[blob.segment].live += blob.bytes;
    at.segment = blob.segment;
    at.offset = blob.offset;
  }
  return true;
}

BlobStore::ReaderPtr BlobStore::segment_reader(uint64_t number) {
  Segment& segment = segments_.at(number);
  if (segment.reader == nullptr) {
    segment.reader = files_.system().open(file_name(kSegmentFile, number));
  }
  return segment.reader;
}

// A segment is opened before it can be deleted; a blob's own file exists until remove().
BlobStore::ReaderPtr BlobStore::get(uint64_t id) {
  try {
    ReaderPtr file;
    Blob blob;
    {
      const std::lock_guard lock(mutex_);
      const auto found = blobs_.find(id);
      if (found == blobs_.end() || found->second.missing) refuse_gone();
      blob = found->second;
      if (blob.segment > 0) file = segment_reader(blob.segment);
    }
    if (file == nullptr) file = files_.system().open(file_name(kStateFile, id));
    return std::make_shared<PartOfFile>(std::move(file), blob.offset, blob.bytes);
  } catch (const std::system_error& error) {
    if (error.code().value() == ENOENT) refuse_gone();
    throw;
  }
}

bool BlobStore::contains(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  return blobs_.contains(id);
}

StateLocation BlobStore::location(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const Blob& blob = blobs_.at(id);
  return {id, blob.segment, blob.offset, blob.bytes};
}

bool BlobStore::is_gone(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  return blobs_.at(id).missing;
}

void BlobStore::set_aside(uint64_t id) {
  const std::lock_guard once(setting_aside_);
  const std::string name = file_name(kStateFile, id);
  std::unique_lock lock(mutex_);
  const Blob blob = blobs_.at(id);
  lock.unlock();
  if (blob.set_aside) return;
  if (blob.segment == 0) {
    files_.set_aside(name);
  } else {
    if (blob.missing) refuse_gone();
    lock.lock();
    const ReaderPtr segment = segment_reader(blob.segment);
    lock.unlock();
    files_.system()
        .create(std::string(kSetAside) + name)
        ->append_from(*segment, blob.offset, blob.bytes);
    files_.count_set_aside();
  }
  lock.lock();
  Blob& at = blobs_.at(id);
  at.missing = at.set_aside = any_gone_ = true;
}

void BlobStore::adopt(const StateLocation& at) {
  blobs_[at.id] = {.segment = at.segment, .offset = at.offset, .bytes = at.bytes, .lasting = true};
  segment_number_ = std::max(segment_number_, at.segment);
}

void BlobStore::retain(const std::function<bool(uint64_t id)>& wanted) {
  std::erase_if(blobs_, [&](const auto& blob) { return !wanted(blob.first); });
}

std::set<uint64_t> BlobStore::find_files(const std::vector<FileSystem::Entry>& files) {
  std::unordered_map<std::string, uint64_t> bytes;
  for (const auto& file : files) {
    bytes[file.name] = file.bytes;
    segment_number_ = std::max(segment_number_, number_of(final_name(file.name), kSegmentFile));
  }
  std::set<uint64_t> all_gone;
  for (auto& [id, blob] : blobs_) {
    const bool own = blob.segment == 0;
    const auto file =
        bytes.find(own ? file_name(kStateFile, id) : file_name(kSegmentFile, blob.segment));
    const bool gone = blob.bytes == 0 || file == bytes.end();
    blob.missing = gone || file->second < blob.bytes || file->second - blob.bytes < blob.offset;
    if (gone) all_gone.insert(id);
    if (blob.missing) any_gone_ = true;
    if (own || file == bytes.end()) continue;
    Segment& segment = segments_[blob.segment];
    segment.bytes = file->second;
    segment.live += blob.bytes;
  }
  return all_gone;
}

bool BlobStore::has_file(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  return blobs_.contains(number_of(name, kStateFile)) ||
         segments_.contains(number_of(name, kSegmentFile));
}

}  // namespace recurve

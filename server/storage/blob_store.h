#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/storage/journal.h"
#include "server/storage/store_files.h"

namespace recurve {

// Immutable blobs by id in the files of a store. A blob of at least own_file bytes has its own
// file, "state-ID". Smaller ones are appended to "segment-N", so that many share a sync. Segments
// are compacted when most of their bytes are unused. The caller records which blobs exist and
// where: see RecordLog.
//
// One thread writes and removes; any thread may read.
class BlobStore {
 public:
  struct Options {
    uint64_t own_file = uint64_t{1} << 20;
    uint64_t segment_bytes = uint64_t{64} << 20;  // a segment of this size gets no more groups
  };
  BlobStore(StoreFiles& files, const Options& options) : files_(files), options_(options) {}

  // The thread that writes. Starts a group of blobs, which share a sync. Call it before the first
  // put() of the group.
  void begin_group();
  // Writes the parts one after the other, sealed with a key of the tenant if files are sealed.
  // lasting: the blob survives a power failure once it is synced; otherwise it exists as long as
  // this object. If it throws std::exception, the blob does not exist.
  void put(uint64_t id, const std::string& tenant, std::span<const std::string_view> parts,
           bool lasting);
  // Syncs the lasting blobs of the group. Returns the blobs that may not be synced, and why.
  std::map<uint64_t, std::string> sync();
  // Does nothing if there is no such blob.
  void remove(uint64_t id);
  // Deletes the files of removed blobs, and compacts a segment of which half is unused, or a
  // quarter if the disk is full. False if there was nothing to do. record: called with the new
  // locations of lasting blobs before the old ones are deleted; if it throws, these stay.
  using Record = std::function<void(const std::vector<StateLocation>& moved)>;
  bool tidy(bool full, const Record& record);

  // Any thread. A blob, which stays readable after it is removed. Throws StateError if it is
  // missing, or std::system_error.
  std::shared_ptr<const FileSystem::Reader> get(uint64_t id);
  bool contains(uint64_t id) const;
  StateLocation location(uint64_t id) const;
  // Whether the blob is known to be unreadable, or any is.
  bool is_gone(uint64_t id) const;
  bool any_gone() const { return any_gone_; }
  // After the blob was found to be damaged: renames its file, so that it cannot be read any more.
  void set_aside(uint64_t id);

  // At the start: the recorded location of a lasting blob.
  void adopt(const StateLocation& at);
  void retain(const std::function<bool(uint64_t id)>& wanted);
  // Searches for the files of the adopted blobs. Returns those whose file does not exist.
  std::set<uint64_t> find_files(const std::vector<FileSystem::Entry>& files);
  // Whether the file belongs to one of these blobs.
  bool has_file(std::string_view name) const;
  // Host memory of what is known of a blob, without its share of the heap.
  static constexpr int64_t blob_memory() {
    return static_cast<int64_t>(sizeof(std::pair<const uint64_t, Blob>));
  }

 private:
  struct Blob {
    uint64_t segment = 0;  // 0: its own file
    uint64_t offset = 0, bytes = 0;
    bool lasting = false;
    bool missing = false;    // its file is missing or too short
    bool set_aside = false;  // it is damaged
  };
  using ReaderPtr = std::shared_ptr<const FileSystem::Reader>;
  struct Segment {
    ReaderPtr reader = {};
    uint64_t bytes = 0, live = 0;
  };

  Blob put_in_file(uint64_t id, const std::string& tenant, std::span<const std::string_view> parts,
                   uint64_t bytes, bool lasting);
  Blob place_in_segment(uint64_t bytes, bool lasting);
  void open_segment();
  void give_up_segment(const char* why);
  bool compact(uint64_t segment, const Record& record);
  ReaderPtr segment_reader(uint64_t number);

  StoreFiles& files_;
  const Options options_;

  // Used by the thread that writes.
  std::unique_ptr<FileSystem::Writer> segment_;
  uint64_t segment_number_ = 0;  // of the open segment, or the last one
  bool segment_changed_ = false;
  std::vector<uint64_t> unsynced_;          // lasting blobs of the group
  std::map<uint64_t, std::string> unsure_;  // of these, which may not be synced

  std::atomic<bool> any_gone_ = false;
  std::mutex setting_aside_;  // held while a file is set aside
  mutable std::mutex mutex_;  // guards the members below
  std::unordered_map<uint64_t, Blob> blobs_;
  std::map<uint64_t, Segment> segments_;
};

}  // namespace recurve

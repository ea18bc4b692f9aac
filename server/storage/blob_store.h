#pragma once
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

// Immutable blobs by id in the files of a store. One from own_file bytes on is a file, "state-ID".
// Smaller ones are written one behind the other into "segment-N", so that many share a sync;
// segments of which most is no longer wanted are compacted. Which blobs there are, and where, is to
// be recorded elsewhere: see RecordLog.
//
// One thread writes and removes; any thread may read.
class BlobStore {
 public:
  struct Options {
    uint64_t own_file = uint64_t{1} << 20;
    uint64_t segment_bytes = uint64_t{64} << 20;  // one of so many bytes takes no more groups
  };
  BlobStore(StoreFiles& files, const Options& options) : files_(files), options_(options) {}

  // The thread that writes. A group of blobs: to be called before the first put() of those that
  // share a sync.
  void begin_group();
  // Writes the parts one after the other; sealed, where files are, with a key of the tenant's.
  // lasting: it is there after a loss of power once it is synced; else as long as this object is.
  // Where it throws std::exception, the blob is not there.
  void put(uint64_t id, const std::string& tenant, std::span<const std::string_view> parts,
           bool lasting);
  // Syncs the lasting blobs of the group. Those of which that is not certain, and why.
  std::map<uint64_t, std::string> sync();
  // Nothing, if there is no such blob.
  void remove(uint64_t id);
  // Removes the files of what was removed, and compacts a segment of which half is no longer
  // wanted, or a quarter where the disk is full. False if there was nothing to do. record: called
  // with the new locations of lasting blobs before the old ones go; may throw, and then these stay.
  using Record = std::function<void(const std::vector<StateLocation>& moved)>;
  bool tidy(bool full, const Record& record);

  // Any thread. A blob, which stays readable once it is removed. Throws StateError where it is
  // gone, or std::system_error.
  std::shared_ptr<const FileSystem::Reader> get(uint64_t id);
  bool contains(uint64_t id) const;
  StateLocation location(uint64_t id) const;
  // Whether it is known that the blob cannot be read.
  bool is_gone(uint64_t id) const;
  // Once it was found to be damaged: it is kept under another name, and cannot be read any more.
  void set_aside(uint64_t id);

  // At the start: where a lasting blob is, as it was recorded.
  void adopt(const StateLocation& at);
  void retain(const std::function<bool(uint64_t id)>& wanted);
  // Looks for the files of those that were adopted.
  struct Found {
    std::set<uint64_t> gone = {};  // without a file
    int64_t missing = 0;           // these, and those whose file is too short
  };
  Found find_files(const std::vector<FileSystem::Entry>& files);
  // Whether the file is one of these blobs'.
  bool has_file(std::string_view name) const;

 private:
  struct Blob {
    uint64_t segment = 0;  // 0: it is a file
    uint64_t offset = 0, bytes = 0;
    bool lasting = false;
    bool missing = false;    // its file is not there, or too short
    bool set_aside = false;  // it was found to be damaged
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

  // Of the thread that writes.
  std::unique_ptr<FileSystem::Writer> segment_;
  uint64_t segment_number_ = 0;  // of that, or the last one
  bool segment_changed_ = false;
  std::vector<uint64_t> unsynced_;          // lasting ones of the group
  std::map<uint64_t, std::string> unsure_;  // of these

  std::mutex setting_aside_;  // held by the thread that does
  mutable std::mutex mutex_;  // of all below
  std::unordered_map<uint64_t, Blob> blobs_;
  std::map<uint64_t, Segment> segments_;
};

}  // namespace recurve

#pragma once
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "server/storage/journal.h"
#include "server/storage/store_files.h"

namespace recurve {

// The journal of a folder, "journal-N": entries that are appended and synced; see journal.h.
// "journal-copy-N" has the same bytes, synced by the system at its own time: what is damaged in one
// of the two is read from the other. One thread.
class RecordLog {
 public:
  // slack: how much the journal may grow beyond twice its snapshot before it is rewritten
  RecordLog(StoreFiles& files, uint64_t slack) : files_(files), slack_(slack) {}

  struct Found {
    JournalContents contents = {};
    bool any = false;                    // a journal exists
    std::set<std::string> damaged = {};  // files
  };
  // Reads the newest journal of those in the folder. Throws std::runtime_error if it has a newer
  // version.
  Found read(const std::vector<FileSystem::Entry>& files);

  // Whether append() may be called: not before begin(), nor after append() has thrown. Then it is
  // unknown which of its entries are written, and until the next begin() no file may be removed
  // that they name.
  bool is_open() const { return journal_ != nullptr; }
  bool is_long() const { return bytes_ > 2 * snapshot_bytes_ + slack_; }
  void close() { journal_.reset(); }
  // Starts the journal of the next number with so many groups. It replaces the previous one.
  void begin(uint64_t groups, std::string_view all);
  // Appends these entries as a group, which then survives a power failure.
  void append(const std::string& entries);

 private:
  JournalContents merged(uint64_t number, const std::vector<FileSystem::Entry>& files,
                         std::set<std::string>* damaged);
  std::unique_ptr<FileSystem::Writer> write_new(const std::string& name, const std::string& all);
  void begin_copy(const std::string& all);
  void append_to_copy(const std::string& group);

  StoreFiles& files_;
  const uint64_t slack_;
  std::unique_ptr<FileSystem::Writer> journal_, copy_;
  uint64_t number_ = 0;  // of the open journal, or the last one
  uint64_t next_group_ = 0;
  uint64_t bytes_ = 0, snapshot_bytes_ = 0;
};

}  // namespace recurve

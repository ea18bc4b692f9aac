#pragma once
#include <chrono>
#include <string>

namespace recurve {

// Locks the folder of `path`: concurrent processes that change files there wait for each other.
// Throws std::runtime_error with a sentence, also if another process does not release the lock in
// time: a server holds that of its --state-dir while it runs.
class FolderLock {
 public:
  explicit FolderLock(const std::string& path,
                      std::chrono::milliseconds patience = std::chrono::seconds(5));
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  const int folder_;
};

// Replaces the file atomically: a reader, and the machine after a power failure, finds the old one
// or the new one. A new file is readable by its owner only. Throws std::runtime_error with a
// sentence.
void write_atomically(const std::string& path, const std::string& text);
// Makes renames and removals in the folder of `path` survive a power failure. Throws the same.
void sync_folder_of(const std::string& path);
// Throws std::runtime_error with a sentence.
std::string read_whole_file(const std::string& path);

}  // namespace recurve

#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "server/storage/file_names.h"
#include "server/storage/file_system.h"

namespace recurve {

// The files of a store, and the bytes that they take. One thread changes them; any thread may read
// them, set one aside, and read the counters.
class StoreFiles {
 public:
  StoreFiles(std::unique_ptr<FileSystem> system, uint64_t most_bytes)
      : system_(std::move(system)), most_bytes_(most_bytes) {}

  FileSystem& system() const { return *system_; }
  uint64_t bytes() const { return bytes_; }
  int64_t syncs() const { return syncs_; }
  int64_t set_aside() const { return set_aside_; }

  // The files in the folder at the start.
  void count(std::span<const FileSystem::Entry> files) {
    for (const auto& file : files) {
      bytes_ += file.bytes;
      set_aside_ += file.name.starts_with(kSetAside);
    }
  }
  bool has_capacity(uint64_t bytes) const { return bytes_ + bytes <= most_bytes_; }
  void check_capacity(uint64_t bytes) const {
    if (has_capacity(bytes)) return;
    throw std::runtime_error(
        fmt::format("the {} bytes of --state-disk are full: close sessions, or raise --state-disk",
                    most_bytes_));
  }
  void add_bytes(uint64_t bytes) {
    bytes_ += bytes;
    written_ += bytes;
  }
  uint64_t written() const { return written_; }  // since the start
  void sync(FileSystem::Writer& writer) {
    writer.sync();
    ++syncs_;
  }

  // A file whose name sync_names() makes durable.
  std::unique_ptr<FileSystem::Writer> create(const std::string& name) {
    auto writer = system_->create(name);
    names_changed_ = true;
    return writer;
  }
  void sync_names() {
    system_->sync_folder();
    names_changed_ = false;
  }
  void sync_changed_names() {
    if (names_changed_) sync_names();
  }

  // A file that cannot be deleted now is deleted at the next start.
  void remove(const std::string& name, uint64_t bytes) {
    try {
      system_->remove(name);
    } catch (const std::exception&) {
      return;
    }
    bytes_ -= std::min<uint64_t>(bytes, bytes_);
  }
  void remove_later(std::string name, uint64_t bytes) {
    unwanted_.emplace_back(std::move(name), bytes);
  }
  // False: there was no such file.
  bool remove_unwanted() {
    const auto unwanted = std::exchange(unwanted_, {});
    for (const auto& [name, bytes] : unwanted) remove(name, bytes);
    return !unwanted.empty();
  }

  // Any thread.
  void set_aside(const std::string& name) {
    system_->rename(name, std::string(kSetAside) + name);
    count_set_aside();
  }
  void count_set_aside() { ++set_aside_; }

 private:
  const std::unique_ptr<FileSystem> system_;
  const uint64_t most_bytes_;
  std::atomic<uint64_t> bytes_ = 0, written_ = 0;
  std::atomic<int64_t> syncs_ = 0, set_aside_ = 0;
  bool names_changed_ = false;
  std::vector<std::pair<std::string, uint64_t>> unwanted_;  // names and sizes
};

}  // namespace recurve

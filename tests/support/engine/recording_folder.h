#pragma once
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <vector>

#include "server/storage/file_system.h"

namespace recurve::testing {

// What a power loss does to a program: no exception of the standard library's, so that nothing
// catches it.
struct PowerLost {};

// One of so many possibilities, [0, of).
using Choose = std::function<size_t(size_t of)>;

// Every combination of choices, one after the other: the digits of a number, each with its own
// base.
class EveryChoice {
 public:
  size_t operator()(size_t of) {
    if (at_ == digits_.size()) digits_.push_back({.of = of});
    return digits_[at_++].value;
  }
  // Goes on to the next one; false: that was the last.
  bool next() {
    at_ = 0;
    while (!digits_.empty() && ++digits_.back().value == digits_.back().of) digits_.pop_back();
    return !digits_.empty();
  }

 private:
  struct Digit {
    size_t value = 0, of = 1;
  };
  std::vector<Digit> digits_;
  size_t at_ = 0;
};

// A disk in memory that knows what has been synced. Whatever has not may be there or not after a
// loss of power: each change of the folder on its own, in whatever order that comes to, and of each
// file's end a part, with sectors missing or torn. Any thread.
class RecordingDisk {
 public:
  static constexpr size_t kSector = 512;

  // Called before each call of a file system, with its number from 1 on and its name; may throw.
  std::function<void(int call, const char* what)> on_call = {};

  // What is there after a loss of power now, as is chosen.
  std::shared_ptr<RecordingDisk> after_power_loss(const Choose& choose) const {
    const std::lock_guard lock(mutex_);
    auto disk = std::make_shared<RecordingDisk>();
    Names names = synced_names_;
    for (const Change& change : changes_) {
      if (choose(2) == 0) change.apply(&names);
    }
    for (const auto& [name, file] : names) {
      auto kept = std::make_shared<File>();
      kept->bytes = survivor(name, *file, choose);
      kept->synced = kept->bytes.size();
      disk->names_[name] = kept;
    }
    disk->synced_names_ = disk->names_;
    return disk;
  }
  int calls() const { return calls_; }
  // Files by name, for tests that change them; of no server that runs.
  std::string& bytes_of(const std::string& name) { return names_.at(name)->bytes; }
  std::vector<std::string> names() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> all;
    for (const auto& [name, file] : names_) all.push_back(name);
    return all;
  }
  void remove(const std::string& name) {
    const std::lock_guard lock(mutex_);
    names_.erase(name);
    synced_names_.erase(name);
  }

 private:
  friend class RecordingFolder;
  struct File {
    std::string bytes;
    size_t synced = 0;  // of those
  };
  using Names = std::map<std::string, std::shared_ptr<File>>;
  struct Change {
    std::string from, to;        // both: a rename; only `from`: removed; only `to`: created
    std::shared_ptr<File> file;  // that is created
    void apply(Names* names) const {
      if (from.empty()) {
        (*names)[to] = file;
      } else if (auto node = names->extract(from); !node.empty() && !to.empty()) {
        (*names)[to] = node.mapped();
      }
    }
  };

  // What is left of a file's end that was not synced.
  enum Tail { kAll, kNothing, kHalf, kFirstSectorMissing, kLastSectorTorn, kZeros, kTails };
  // A copy of a journal, of which much is never synced, is whole or has a hole: all else of it is
  // tried with the journal, which is what is read first.
  static std::string survivor(const std::string& name, const File& file, const Choose& choose) {
    std::string bytes = file.bytes;
    const size_t unsynced = bytes.size() - file.synced;
    if (unsynced == 0) return bytes;
    const auto erase = [&](size_t from, size_t count) {
      std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(from), count, '\0');
    };
    const bool is_copy = name.find("-copy-") != std::string::npos;
    switch (is_copy ? choose(2) * kFirstSectorMissing : choose(kTails)) {
      case kNothing:
        bytes.resize(file.synced);
        break;
      case kHalf:
        bytes.resize(file.synced + (unsynced + 1) / 2);
        break;
      case kFirstSectorMissing:  // it is there, and holds nothing
        erase(file.synced, std::min(unsynced, kSector - file.synced % kSector));
        break;
      case kLastSectorTorn: {
        const size_t torn = std::min(unsynced, kSector / 2);
        erase(bytes.size() - torn, torn);
        break;
      }
      case kZeros:
        erase(file.synced, unsynced);
        break;
      default:
        break;
    }
    return bytes;
  }
  void called(const char* what) {
    const int call = ++calls_;
    if (on_call) on_call(call, what);
  }
  void change(Change change) {
    const std::lock_guard lock(mutex_);
    change.apply(&names_);
    changes_.push_back(std::move(change));
  }

  std::atomic<int> calls_ = 0;
  mutable std::mutex mutex_;  // of all below, and of files' bytes
  Names names_, synced_names_;
  std::vector<Change> changes_;  // of the folder, since its last sync
};

class RecordingFolder final : public FileSystem {
 public:
  explicit RecordingFolder(std::shared_ptr<RecordingDisk> disk) : disk_(std::move(disk)) {}

  std::vector<Entry> list() override {
    disk_->called("list");
    const std::lock_guard lock(disk_->mutex_);
    std::vector<Entry> entries;
    for (const auto& [name, file] : disk_->names_) entries.push_back({name, file->bytes.size()});
    return entries;
  }
  std::unique_ptr<Writer> create(const std::string& name) override {
    disk_->called("create");
    auto file = std::make_shared<RecordingDisk::File>();
    disk_->change({.from = {}, .to = name, .file = file});
    return std::make_unique<DiskWriter>(disk_, file);
  }
  std::unique_ptr<Reader> open(const std::string& name) override {
    disk_->called("open");
    return std::make_unique<DiskReader>(disk_, find(name));
  }
  void rename(const std::string& from, const std::string& to) override {
    disk_->called("rename");
    find(from);
    disk_->change({.from = from, .to = to, .file = {}});
  }
  void remove(const std::string& name) override {
    disk_->called("remove");
    find(name);
    disk_->change({.from = name, .to = {}, .file = {}});
  }
  void sync_folder() override {
    disk_->called("sync_folder");
    const std::lock_guard lock(disk_->mutex_);
    disk_->synced_names_ = disk_->names_;
    disk_->changes_.clear();
  }

 private:
  using FilePtr = std::shared_ptr<RecordingDisk::File>;
  class DiskWriter final : public Writer {
   public:
    DiskWriter(std::shared_ptr<RecordingDisk> disk, FilePtr file)
        : disk_(std::move(disk)), file_(std::move(file)) {}
    void append(std::string_view bytes) override {
      // A call that fails may have written a part.
      add(bytes.substr(0, bytes.size() / 2));
      disk_->called("append");
      add(bytes.substr(bytes.size() / 2));
    }
    void sync() override {
      disk_->called("sync");
      const std::lock_guard lock(disk_->mutex_);
      file_->synced = file_->bytes.size();
    }

   private:
    void add(std::string_view bytes) {
      const std::lock_guard lock(disk_->mutex_);
      file_->bytes.append(bytes);
    }
    const std::shared_ptr<RecordingDisk> disk_;
    const FilePtr file_;
  };
  class DiskReader final : public Reader {
   public:
    DiskReader(std::shared_ptr<RecordingDisk> disk, FilePtr file)
        : disk_(std::move(disk)), file_(std::move(file)) {}
    uint64_t bytes() const override {
      const std::lock_guard lock(disk_->mutex_);
      return file_->bytes.size();
    }
    void read(uint64_t offset, std::span<std::byte> to) const override {
      disk_->called("read");
      const std::lock_guard lock(disk_->mutex_);
      if (offset + to.size() > file_->bytes.size()) {
        throw std::system_error(EIO, std::generic_category(), "cannot read all of it");
      }
      std::memcpy(to.data(), file_->bytes.data() + offset, to.size());
    }

   private:
    const std::shared_ptr<RecordingDisk> disk_;
    const FilePtr file_;
  };
  FilePtr find(const std::string& name) const {
    const std::lock_guard lock(disk_->mutex_);
    const auto found = disk_->names_.find(name);
    if (found != disk_->names_.end()) return found->second;
    throw std::system_error(ENOENT, std::generic_category(), "there is no " + name);
  }

  const std::shared_ptr<RecordingDisk> disk_;
};

}  // namespace recurve::testing

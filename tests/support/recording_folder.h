#pragma once
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <vector>

#include "server/storage/file_system.h"

namespace recurve::testing {

// What a power loss does to a program: no exception of the standard library's, so that nothing
// catches it.
struct PowerLost {};

// A disk in memory that knows what has been synced. Whatever has not may be there or not after a
// loss of power: each change of the folder on its own, and of each file's end any part, with
// sectors missing in between.
class RecordingDisk {
 public:
  static constexpr size_t kSector = 512;

  // Called before each call of a file system, with its number from 1 on and its name; may throw.
  std::function<void(int call, const char* what)> on_call = {};

  // What is there after a loss of power now, as the random numbers decide.
  std::shared_ptr<RecordingDisk> after_power_loss(std::mt19937_64& random) const {
    const auto chance = [&](int of) { return random() % static_cast<uint64_t>(of) == 0; };
    auto disk = std::make_shared<RecordingDisk>();
    // Mostly all or nothing of one kind survives: that is where orders go wrong.
    const int kind = static_cast<int>(random() % 4);
    Names names = synced_names_;
    for (const Change& change : changes_) {
      const bool survives = kind == 0 || (kind != 1 && chance(2));
      if (survives) change.apply(&names);
    }
    for (const auto& [name, file] : names) {
      auto kept = std::make_shared<File>();
      kept->bytes = kind == 0 ? file->bytes : survivor(*file, kind, random);
      kept->synced = kept->bytes.size();
      disk->names_[name] = kept;
    }
    disk->synced_names_ = disk->names_;
    return disk;
  }
  int calls() const { return calls_; }
  // Files by name, for tests that change them.
  std::string& bytes_of(const std::string& name) { return names_.at(name)->bytes; }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, file] : names_) all.push_back(name);
    return all;
  }
  void remove(const std::string& name) {
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

  static std::string survivor(const File& file, int kind, std::mt19937_64& random) {
    std::string bytes = file.bytes.substr(0, file.synced);
    const size_t unsynced = file.bytes.size() - file.synced;
    if (kind == 1 || unsynced == 0) return bytes;
    bytes += file.bytes.substr(file.synced, random() % (unsynced + 1));
    // Sectors that were never written are there, and hold nothing.
    for (size_t at = file.synced; kind == 3 && at < bytes.size(); at += kSector) {
      if (random() % 2 == 0) continue;
      std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(at), std::min(kSector, bytes.size() - at),
                  '\0');
    }
    return bytes;
  }
  void called(const char* what) {
    ++calls_;
    if (on_call) on_call(calls_, what);
  }
  void change(Change change) {
    change.apply(&names_);
    changes_.push_back(std::move(change));
  }

  int calls_ = 0;
  Names names_, synced_names_;
  std::vector<Change> changes_;  // of the folder, since its last sync
};

class RecordingFolder final : public FileSystem {
 public:
  explicit RecordingFolder(std::shared_ptr<RecordingDisk> disk) : disk_(std::move(disk)) {}

  std::vector<Entry> list() override {
    disk_->called("list");
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
      file_->bytes.append(bytes.substr(0, bytes.size() / 2));
      disk_->called("append");
      file_->bytes.append(bytes.substr(bytes.size() / 2));
    }
    void sync() override {
      disk_->called("sync");
      file_->synced = file_->bytes.size();
    }

   private:
    const std::shared_ptr<RecordingDisk> disk_;
    const FilePtr file_;
  };
  class DiskReader final : public Reader {
   public:
    DiskReader(std::shared_ptr<RecordingDisk> disk, FilePtr file)
        : disk_(std::move(disk)), file_(std::move(file)) {}
    uint64_t bytes() const override { return file_->bytes.size(); }
    void read(uint64_t offset, std::span<std::byte> to) const override {
      disk_->called("read");
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
    const auto found = disk_->names_.find(name);
    if (found != disk_->names_.end()) return found->second;
    throw std::system_error(ENOENT, std::generic_category(), "there is no " + name);
  }

  const std::shared_ptr<RecordingDisk> disk_;
};

}  // namespace recurve::testing

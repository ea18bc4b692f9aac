#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "model/model.h"
#include "server/storage/file_system.h"
#include "tests/bench/disk_speed.h"
#include "tests/bench/report.h"

namespace recurve::bench {

inline constexpr int64_t kPlenty = int64_t{1} << 40;  // bytes of a limit that nothing reaches

// A folder for a bench's files, which goes with it.
class BenchFolder {
 public:
  explicit BenchFolder(const std::string& in);
  ~BenchFolder();
  BenchFolder(const BenchFolder&) = delete;
  BenchFolder& operator=(const BenchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  const std::filesystem::path path_;
};

// A row of the report.
struct SessionRow {
  Report& report;
  void operator()(const std::string& what, double value, const char* unit,
                  const std::string& target = "") const {
    report.add({{"bench", "sessions"},
                {"what", what},
                {"value", value},
                {"unit", unit},
                {"target", target}});
  }
};

// Whether files are sealed, as with recurve-server's --state-keys, with keys that are created next
// to the folder.
enum class Sealed { kNo, kYes };
#if RECURVE_SERVER
inline constexpr bool kCanSeal = true;
#else
inline constexpr bool kCanSeal = false;
#endif
std::unique_ptr<FileSystem> open_bench_folder(const std::filesystem::path& path, Sealed sealed);

// Sessions of that model whose states are in a folder: what commits take, and how long a state is
// on its way from there to a token; next to what the machine's disk and memory do with as many
// bytes.
void measure_disk(const Model& model, Backend& backend, const std::string& folder, int rounds,
                  Report& report);

// Of measure_disk(), what commits take; server: with that many slots. sealed_folder: for files of a
// server whose states are sealed, where they can be.
inline constexpr int kCommitSlots = 160;
class SessionServer;
void measure_commits(const Model& model, Backend& backend, SessionServer& server,
                     const std::filesystem::path& sealed_folder, int rounds, const DiskSpeed& speed,
                     const SessionRow& row);

// A server that begins with so many small sessions in the folder: seconds, and memory.
void measure_many(Backend& backend, const std::string& folder, int sessions, Report& report);

}  // namespace recurve::bench

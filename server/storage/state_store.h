#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/state/state_form.h"
#include "server/storage/file_system.h"
#include "server/storage/journal.h"
#include "server/storage/records.h"

namespace recurve {

class StateStore;

// A written state, which stays where it is as long as somebody has this: the owner of a session or
// a mark, or who reads it. Any thread; the store outlives it.
class StoredState {
 public:
  StoredState(StateStore& store, uint64_t id, bool durable)
      : store_(store), id_(id), durable_(durable) {}
  ~StoredState();
  StoredState(const StoredState&) = delete;
  StoredState& operator=(const StoredState&) = delete;

  uint64_t id() const { return id_; }
  // Whether it is there after a loss of power; else only as long as the store is.
  bool durable() const { return durable_; }

 private:
  StateStore& store_;
  const uint64_t id_;
  const bool durable_;
};
using StoredPtr = std::shared_ptr<const StoredState>;

// States and records in a folder. A record is some text by a key, which may name states; what is
// committed is there after a loss of power, and a state is there as long as a record names it.
//
// Files of the folder: "state-ID" is a state, written as server/state has it. States below
// kOwnFile are written one behind the other into "segment-N", so that many commits share a sync;
// segments of which most is no longer wanted are compacted. "journal-N" says which states are
// where, and holds the records; see journal.h. "journal-copy-N" has the same bytes, which are
// synced when the system gets to it: what is damaged in one of the two is read from the other. In a
// commit the states come first, then a sync, then the journal, then a sync: what the journal names
// is there. Whatever the journal does not name is what a commit left that never came to its end,
// and is removed at the start. What is damaged, or is called as a file of the store and is none, is
// given a name that begins with "set-aside-", and stays; other files are left alone.
//
// A record whose key says that it is expendable is committed as any other is, and goes at once: its
// state makes room for what is committed with its removal, before the journal says so. If power is
// lost in between, the journal names a state that is not there, and the record is dropped at the
// start.
//
// One thread commits; any thread may read, and let go of states.
class StateStore {
 public:
  struct Options {
    uint64_t most_bytes = UINT64_MAX;             // of all files
    uint64_t own_file = uint64_t{1} << 20;        // states from so many bytes on have files
    uint64_t segment_bytes = uint64_t{64} << 20;  // one of so many bytes takes no more groups
    uint64_t journal_slack = uint64_t{4} << 20;   // what it may grow by before it is written anew
  };
  struct Record {
    std::string key, text;
    std::vector<StoredPtr> states;  // that it names, in its order
    // It may not be the last one that was committed: the journal is damaged. Until it is put anew.
    bool in_doubt = false;
  };
  struct NewState {
    StateHeader header;  // whose id is new_id()'s
    StateImage image;    // of its layout
  };
  // A record that is put in the place of the one of that key, or removed. Without a key a state is
  // only written, and not synced: it is gone when the store is.
  struct Change {
    std::string key = {};
    bool removes = false;
    std::string tenant = {};  // whose the state is; empty: nobody's
    std::string text = {};
    std::vector<uint64_t> states = {};  // that the record names
    std::optional<NewState> state = {};
  };
  struct Outcome {
    std::string error = {};  // a sentence; empty: it is done
    StoredPtr state = {};    // the new one
  };
  struct Usage {
    uint64_t bytes = 0;  // of all files
    int64_t states = 0, records = 0, syncs = 0, set_aside = 0;
  };

  // Reads the journal of the folder. Throws std::runtime_error with a sentence if that is of a
  // newer version, or the folder cannot be read. If it cannot be written, as where the disk is
  // full, what is there is served, and commits fail until it can be.
  StateStore(std::unique_ptr<FileSystem> files, const Options& options);
  ~StateStore();

  // Hands over all records whose keys begin so, by their keys. Not while others commit.
  void for_each_record(std::string_view begins, const std::function<void(Record record)>& take);
  void for_each_record(const std::function<void(Record record)>& take) {
    for_each_record("", take);
  }
  uint64_t new_id();

  // All that may be done is done, with two syncs at most for all of it; a change that fails leaves
  // its record as it was, but for an expendable one, which is gone. Never throws but
  // std::bad_alloc, and then whether it was done is unknown.
  std::vector<Outcome> commit(std::span<const Change> changes);
  // Removes what nobody wants any more, and compacts a segment of which half is no longer wanted,
  // or a quarter where the disk is full. False if there was nothing to do. On the thread that
  // commits.
  enum class Hurry { kIdle, kFull };
  bool tidy(Hurry hurry = Hurry::kIdle);

  // Throws StateError, or KeyMissing, or std::system_error where the system refuses.
  StateHeader read(const StoredState& state, const StateHeader& wanted, const StateRooms& rooms);
  StateHeader read_answer(const StoredState& state, int32_t vocab);
  StateHeader read_header(const StoredState& state);
  // Bytes of a state as it is written.
  uint64_t bytes_of(const StoredState& state) const;
  // What was found to be damaged: it is kept under another name, and cannot be read here any more.
  void set_aside(const StoredState& state);

  Usage usage() const;
  // What was found to be damaged at the start.
  struct Damage {
    bool journal = false;       // it, or its copy
    bool records_lost = false;  // neither has all; records that are not there may be among them
    int64_t in_doubt = 0;       // records, those of before included
    int64_t states_gone = 0;    // that records name, but for expendable ones
  };
  const Damage& damage() const { return damage_; }
  // Whether it is known that the state cannot be read.
  bool is_gone(const StoredState& state) const { return place_of(state).missing; }
  // Why nothing could be written at the start: a sentence; empty: it could.
  const std::string& not_writable() const { return not_writable_; }
  // See FileSystem: commits fail as long as this is not empty. Any thread.
  std::string lost() const { return files_->lost(); }

 private:
  friend class StoredState;
  // Where a state is, and who wants it.
  struct Place {
    uint64_t segment = 0;  // 0: a file of its own
    uint64_t offset = 0, bytes = 0;
    int32_t records = 0, handles = 0;
    bool durable = false;
    bool missing = false;    // its file is not there, or too short
    bool set_aside = false;  // it was found to be damaged
  };
  struct Segment {
    std::shared_ptr<const FileSystem::Reader> reader = {};
    uint64_t bytes = 0, live = 0;
  };
  struct Written;
  using Places = std::unordered_map<uint64_t, Place>;

  void recover();
  JournalContents read_journal(uint64_t number, const std::vector<FileSystem::Entry>& files,
                               std::set<std::string>* bad);
  void adopt(const JournalContents& found);
  void doubt_records();
  std::set<uint64_t> find_files(const std::vector<FileSystem::Entry>& files);
  void drop_expendable(const std::set<uint64_t>& gone);
  void sweep(const std::vector<FileSystem::Entry>& files, const std::set<std::string>& bad);
  bool is_left_over(const std::string& name, uint64_t bytes);
  void set_aside(const std::string& name);
  StoredPtr handle(uint64_t id, Place& place);

  void give_up_expendable(std::span<const Change> changes);
  void make_room(std::span<const Change> changes);
  void write_states(std::span<const Change> changes, std::vector<Written>* written);
  void write_state(const Change& change, Written* written);
  void sync_states(std::vector<Written>* written);
  void sync(FileSystem::Writer& writer);
  Place place_in_segment(uint64_t bytes, bool durable);
  void leave_full_segment();
  void open_segment();
  void sync_segment();
  void give_up_segment(const char* why, std::vector<Written>* written);
  void write_journal(std::span<const Change> changes, std::vector<Written>* written);
  void append_to_journal(const std::string& entries);
  void begin_journal();
  std::unique_ptr<FileSystem::Writer> write_new(const std::string& name, const std::string& all);
  void begin_copy(const std::string& all);
  void append_to_copy(const std::string& group);
  std::string snapshot(uint64_t* groups) const;
  void apply(const Change& change, Written* written, Outcome* outcome);
  void unname(const std::vector<uint64_t>& states);
  void check_room(uint64_t bytes);
  void let_go(uint64_t id);
  void forget(Places::iterator at);
  bool compact(uint64_t segment);
  void remove_file(const std::string& name, uint64_t bytes);
  void write_location(uint64_t id, const Place& place, std::string* to) const;
  Place place_of(const StoredState& state) const;
  void check_is(const StoredState& state, const StateHeader& found) const;
  std::shared_ptr<const FileSystem::Reader> segment_reader(uint64_t number);
  std::shared_ptr<const FileSystem::Reader> reader_of(const StoredState& state, Place* place);

  const std::unique_ptr<FileSystem> files_;
  const Options options_;
  std::string not_writable_;
  Damage damage_;

  // Of the committing thread.
  std::unique_ptr<FileSystem::Writer> journal_, journal_copy_, segment_;
  uint64_t next_group_ = 0;                           // of the journal
  uint64_t journal_number_ = 0, segment_number_ = 0;  // of those, or the last ones
  uint64_t journal_bytes_ = 0, snapshot_bytes_ = 0;
  bool segment_dirty_ = false, folder_dirty_ = false;
  std::vector<std::pair<std::string, uint64_t>> to_remove_;  // names and bytes

  std::mutex setting_aside_;  // held by the thread that does
  mutable std::mutex mutex_;  // of all below
  uint64_t next_id_ = 1;
  Places places_;
  Records records_;
  std::map<uint64_t, Segment> segments_;
  std::vector<uint64_t> let_go_;
  Usage usage_;
};

}  // namespace recurve

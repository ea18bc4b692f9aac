#pragma once
#include <cstdint>
#include <functional>
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
#include "server/storage/blob_store.h"
#include "server/storage/record_log.h"
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
// The states are blobs, written as server/state has it, and the records are in the journal, which
// says where the blobs are: see BlobStore and RecordLog. In a commit the states come first, then a
// sync, then the journal, then a sync: what the journal names is there. A state that the journal
// does not name is of a commit that did not end, and is removed at the start. A file that is
// damaged, or has the name of one of the store's and is none, gets a name that begins with
// "set-aside-" and stays; other files are left alone.
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
    uint64_t most_bytes = UINT64_MAX;  // of all files
    uint64_t own_file = BlobStore::Options().own_file;
    uint64_t segment_bytes = BlobStore::Options().segment_bytes;
    uint64_t journal_slack = uint64_t{4} << 20;  // see RecordLog
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
    std::string tenant = {};  // whose the state is; empty: no tenant's
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
  // Removes states that have neither a record nor an owner, and compacts: see BlobStore. False if
  // there was nothing to do. On the thread that commits.
  enum class Hurry { kIdle, kFull };
  bool tidy(Hurry hurry = Hurry::kIdle);

  // Throws StateError, or KeyMissing, or std::system_error where the system refuses.
  StateHeader read(const StoredState& state, const StateHeader& wanted, const StateRooms& rooms);
  StateHeader read_answer(const StoredState& state, int32_t vocab);
  StateHeader read_header(const StoredState& state);
  // Bytes of a state as it is written.
  uint64_t bytes_of(const StoredState& state) const { return blobs_.location(state.id()).bytes; }
  // What was found to be damaged: it is kept under another name, and cannot be read here any more.
  void set_aside(const StoredState& state) { blobs_.set_aside(state.id()); }

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
  bool is_gone(const StoredState& state) const { return blobs_.is_gone(state.id()); }
  // Why nothing could be written at the start: a sentence; empty: it could.
  const std::string& not_writable() const { return not_writable_; }
  // See FileSystem: commits fail as long as this is not empty. Any thread.
  std::string lost() const { return files_.system().lost(); }

 private:
  friend class StoredState;
  // What wants a state.
  struct Refs {
    int32_t records = 0, handles = 0;
    bool durable = false;
  };

  void recover();
  void adopt(const JournalContents& found);
  void doubt_records();
  void drop_expendable(const std::set<uint64_t>& gone);
  void sweep(const std::vector<FileSystem::Entry>& files, const std::set<std::string>& damaged);
  bool is_left_over(const std::string& name, uint64_t bytes);
  StoredPtr handle(uint64_t id, Refs& refs);

  void give_up_expendable(std::span<const Change> changes);
  void make_capacity(std::span<const Change> changes);
  void write_states(std::span<const Change> changes, std::vector<Outcome>* outcomes);
  void write_state(const Change& change);
  void write_journal(std::span<const Change> changes, std::vector<Outcome>* outcomes);
  void begin_journal();
  void apply(const Change& change, Outcome* outcome);
  void unname(const std::vector<uint64_t>& states);
  void let_go(uint64_t id);
  void check_is(const StoredState& state, const StateHeader& found) const;

  StoreFiles files_;
  BlobStore blobs_;
  RecordLog log_;  // of the thread that commits
  std::string not_writable_;
  Damage damage_;

  mutable std::mutex mutex_;  // of all below
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, Refs> refs_;
  Records records_;
  std::vector<uint64_t> let_go_;
};

}  // namespace recurve

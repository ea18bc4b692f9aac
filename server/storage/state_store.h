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

// A written state. It is not deleted while an object of this class exists, which the owner of a
// session or a mark has, or a reader. Any thread; the store outlives it.
class StoredState {
 public:
  StoredState(StateStore& store, uint64_t id, bool durable)
      : store_(store), id_(id), durable_(durable) {}
  ~StoredState();
  StoredState(const StoredState&) = delete;
  StoredState& operator=(const StoredState&) = delete;

  uint64_t id() const { return id_; }
  // Whether it survives a power failure; otherwise it exists as long as the store.
  bool durable() const { return durable_; }

 private:
  StateStore& store_;
  const uint64_t id_;
  const bool durable_;
};
using StoredPtr = std::shared_ptr<const StoredState>;

// A written part of a text: its tokens in [first, end).
struct StoredTokens {
  int64_t first = 0, end = 0;
  StoredPtr stored = {};
};

// States and records in a folder. A record is a text by a key, and may name states. A committed
// record survives a power failure, and so does a state while a record names it.
//
// Of a state that grows, pages that are full do not change any more, and are written once: a
// committed state is a blob without them, which refers to page groups (server/state/state_form.h).
// A group has the pages that were new when it was written, and refers to the one with the pages
// before these. States share groups, for example a session and its fork. A group is deleted after
// the last state that needs it.
//
// The states are blobs in the form of server/state. The records are in the journal, which has the
// locations of the blobs: see BlobStore and RecordLog. A commit writes the states, syncs, writes
// the journal, and syncs: so everything that the journal names exists. A state that the journal
// does not name belongs to an incomplete commit and is deleted at the start. A damaged file, and a
// foreign file with a name of the store, is renamed to "set-aside-..." and stays; other files are
// not changed.
//
// A record with an expendable key is committed like any other, and is removed at once: the space of
// its state, and of page groups that no other state needs, is free for what is committed with its
// removal, before the journal has the removal. After a power failure in between, the journal names
// a missing state or group, and the record is dropped at the start.
//
// One thread commits; any thread may read and release states.
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
    std::vector<StoredPtr> states;  // the named states, in order
    // The journal is damaged: a later commit of this record may be lost. Until it is put again.
    bool in_doubt = false;
  };
  struct NewState {
    StateHeader header;  // with an id of new_id()
    StateImage image;    // in its layout; see `continues`
    // A state of the same tenant, one of the two being a beginning of the other: page groups that
    // have pages of both are shared. Null: all pages are written. If it is the beginning, the
    // image may lack the pages that are in its page groups: see pages_of().
    StoredPtr continues = {};
  };
  struct NewTokens {
    uint64_t id = 0;  // of new_id()
    int64_t first = 0;
    std::vector<uint32_t> tokens;  // as TokenLog::words() has them; at most kMostTokens
  };
  // Puts a record, which replaces the one of that key, or removes it. Without a key a state is only
  // written and not synced: it exists as long as the store.
  struct Change {
    std::string key = {};
    bool removes = false;
    std::string tenant = {};  // the owner of the state; empty: none
    std::string text = {};
    std::vector<uint64_t> states = {};  // ids of the named states and tokens
    std::optional<NewState> state = {};
    std::optional<NewTokens> tokens = {};  // with a key
  };
  struct Outcome {
    std::string error = {};  // a message; empty: success
    StoredPtr state = {};    // the new state
    StoredPtr tokens = {};   // the new tokens
  };
  struct Usage {
    uint64_t bytes = 0;    // of all files
    uint64_t written = 0;  // since the start
    int64_t states = 0;    // and page groups and tokens
    int64_t records = 0, syncs = 0, set_aside = 0;
  };

  // Reads the journal of the folder. Throws std::runtime_error with a message if it has a newer
  // version, or the folder cannot be read. If the folder cannot be written, for example because the
  // disk is full, its states are served, and commits fail until it can be.
  StateStore(std::unique_ptr<FileSystem> files, const Options& options);
  ~StateStore();

  // Hands over all records with this prefix of the key, in the order of keys. Not during a commit.
  void for_each_record(std::string_view begins, const std::function<void(Record record)>& take);
  void for_each_record(const std::function<void(Record record)>& take) {
    for_each_record("", take);
  }
  uint64_t new_id();

  // Does as many of the changes as possible, with at most two syncs for all of them. A change that
  // fails leaves its record unchanged, except an expendable one, which is removed. Throws only
  // std::bad_alloc; then it is unknown whether the changes were done.
  std::vector<Outcome> commit(std::span<const Change> changes);
  // Deletes states without a record and without an owner, and compacts: see BlobStore. False if
  // there was nothing to do. On the thread that commits.
  enum class Hurry { kIdle, kFull };
  bool tidy(Hurry hurry = Hurry::kIdle);

  // Throws StateError, KeyMissing, or std::system_error if the system refuses.
  StateHeader read(const StoredState& state, const StateHeader& wanted, const StateRooms& rooms);
  StateHeader read_answer(const StoredState& state, int32_t vocab);
  StateHeader read_header(const StoredState& state);
  // All of the part, whose ids are below vocab.
  std::vector<uint32_t> read_tokens(const StoredTokens& part, int32_t vocab);
  // Bytes of a written state.
  uint64_t bytes_of(const StoredState& state) const { return blobs_.location(state.id()).bytes; }
  // Bytes that a commit of the change writes for its state and tokens, about.
  uint64_t bytes_to_write(const Change& change) const;
  // The last of the page groups that a state or a page group refers to; id 0: none.
  struct Pages {
    uint64_t id = 0;
    int64_t count = 0;      // of it and of the groups before it
    uint64_t reserved = 0;  // bytes that it takes at most: a segment may be half unused
  };
  Pages pages_of(const StoredState& state) const { return pages_before(state.id()); }
  Pages pages_before(uint64_t id) const;
  // Host memory that the store needs for each page group, about.
  static int64_t page_group_memory();
  // After the state was found to be damaged: renames its file, so that it cannot be read any more.
  void set_aside(const StoredState& state) { blobs_.set_aside(state.id()); }

  Usage usage() const;
  // The damage that was found at the start.
  struct Damage {
    bool journal = false;       // the journal or its copy is damaged
    bool records_lost = false;  // both lack groups, which may have had other records
    int64_t in_doubt = 0;       // records, including those of earlier starts
    int64_t states_gone = 0;    // missing states that records name, except expendable ones
  };
  const Damage& damage() const { return damage_; }
  // Whether the state or one of its pages is known to be unreadable.
  bool is_gone(const StoredState& state) const;
  // Why nothing could be written at the start: a message; empty: it could.
  const std::string& not_writable() const { return not_writable_; }
  // See FileSystem: commits fail while this is not empty. Any thread.
  std::string lost() const { return files_.system().lost(); }

 private:
  friend class StoredState;
  // What references a state or a page group, and what that refers to.
  struct Refs {
    int32_t records = 0, handles = 0;
    int32_t states = 0;  // and page groups, that refer to this group
    bool durable = false;
    uint64_t base = 0;      // a page group; 0: none
    int64_t pages = 0;      // of this group and those before it; 0: a state
    uint64_t checksum = 0;  // of this group

    bool used() const { return records > 0 || states > 0; }
  };
  using RefsById = std::unordered_map<uint64_t, Refs>;
  // What was written of a state, by the index of its change.
  struct Written {
    PageGroupRef group = {};  // with its new pages; id 0: none
    int64_t pages = 0;        // that it has in page groups
    uint64_t base = 0;        // the last of the groups that were there before; 0: none
  };
  // Of the new group, of the state itself and of its tokens.
  static std::vector<std::pair<uint64_t, Refs>> refs_of(const Change& change,
                                                        const Written& written);

  void recover();
  void adopt(const JournalContents& found);
  void count_groups(const RefsById& paged);
  void doubt_records();
  void drop_expendable(const std::set<uint64_t>& gone);
  void sweep(const std::vector<FileSystem::Entry>& files, const std::set<std::string>& damaged);
  bool is_left_over(const std::string& name, uint64_t bytes);
  StoredPtr handle(uint64_t id, Refs& refs);

  void give_up_expendable(std::span<const Change> changes);
  void make_capacity(std::span<const Change> changes);
  std::vector<Written> write_states(std::span<const Change> changes,
                                    std::vector<Outcome>* outcomes);
  void write_state(const Change& change, Written* written);
  RefsById::const_iterator base_of(const Change& change) const;
  void write_journal(std::span<const Change> changes, std::span<const Written> written,
                     std::vector<Outcome>* outcomes);
  void begin_journal();
  void append_location(uint64_t id, const Refs& refs, std::string* entries) const;
  void apply(const Change& change, const Written& written, Outcome* outcome);
  void unname(const std::vector<uint64_t>& states);
  void release(uint64_t id);
  void remove_released();
  void read_pages(const PageGroupRef& base, const StateRooms& pages);
  bool any_gone(uint64_t id) const;
  void check_is(const StoredState& state, const StateHeader& found) const;

  StoreFiles files_;
  BlobStore blobs_;
  RecordLog log_;  // used by the thread that commits
  std::string not_writable_;
  Damage damage_;

  mutable std::mutex mutex_;  // guards the members below
  uint64_t next_id_ = 1;
  RefsById refs_;
  Records records_;
  std::vector<uint64_t> released_;
};

}  // namespace recurve

#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace recurve {

// The journal of a store of states: groups of entries, one after the other, each with a checksum.
// Numbers are little-endian; a text is its length, u32, and its bytes.
//
//   8  "RCRVJRNL"                    then for each group:   4  "RJNL"
//   4  u32 version, 4                                       4  u32 L, bytes of the entries
//   8  u64 groups of the snapshot                           8  u64 number of the group, from 0 on
//   8  u64 checksum of those 20                             8  u64 checksum of number and entries
//                                                           L  entries: u8 kind, and what it has
//
// What is committed together is one group, so that after a power failure all of it is there or
// nothing, whichever sectors were written. Each group is synced before the next one is written. So
// a power failure damages only the last group, and a missing group before another was damaged
// later. Version 3 has no entries of kind 5. In versions 1 and 2 the file's header has no number of
// groups, groups have no numbers, and their checksums cover the entries; in version 1 each entry
// was a group.
//
// The entries of a file begin with a snapshot: the result of all previous files. So the file with
// the highest number is the journal, and the others are obsolete.

// The state is at this location from now on. kind 1: u64 id, u64 segment (0: a file), u64 offset,
// u64 bytes.
struct StateLocation {
  uint64_t id = 0, segment = 0, offset = 0, bytes = 0;
};
// The blob is at this location, and refers to page groups (server/state/state_form.h): a state to
// that of its last full page, a page group to the one with the pages before its own. kind 5: the
// location as above, u64 id of that group (0: none), u64 pages that a page group and those before
// it have together (0: a state), u64 checksum of the page group's header.
struct PagedLocation {
  StateLocation at;
  uint64_t base = 0, pages = 0, checksum = 0;
};
// The record of a key. kind 2: text key, text, u32 number of states, u64 id of each. kind 4: the
// same, in doubt: a later commit of that key may have been lost.
struct RecordEntry {
  std::string key, text;
  std::vector<uint64_t> states;
  bool in_doubt = false;
};
// The record of that key was removed. kind 3: text key.
struct RecordRemoved {
  std::string key;
};
using JournalEntry = std::variant<StateLocation, PagedLocation, RecordEntry, RecordRemoved>;

inline constexpr std::string_view kJournalMagic = "RCRVJRNL";

std::string journal_beginning(uint64_t snapshot_groups);
void append_entry(const JournalEntry& entry, std::string* entries);
// For an entry that append_entry() wrote for a RecordEntry: the whole record, and only its key.
RecordEntry record_of(std::string_view entry);
std::string_view key_of_record(std::string_view entry);
// The entries as the group of that number.
std::string journal_group(uint64_t number, std::string_view entries);

struct JournalContents {
  // A complete group: its number, and where its entries end.
  struct Group {
    uint64_t number = 0;
    size_t end = 0;
  };
  std::vector<Group> groups;
  std::vector<JournalEntry> entries;
  uint64_t snapshot_groups = 0;  // 0: unknown
  // There are bytes between its groups that are not a group: it was damaged, not cut off.
  bool damaged = false;
  bool has_tail = false;  // other bytes follow the last group
};
// Throws std::runtime_error with a message if the journal has a newer version.
JournalContents parse_journal(std::string_view journal);
// The groups of a journal and of its copy.
JournalContents merge_journals(JournalContents journal, JournalContents copy);
// What is missing: whether groups are, and the entry from which on all are there. A record that is
// put before that entry, and not after it, is in doubt. A missing group of the snapshot replaced
// nothing.
struct JournalGaps {
  bool any = false;
  size_t whole_from = 0;
};
JournalGaps gaps_in(const JournalContents& contents);

}  // namespace recurve

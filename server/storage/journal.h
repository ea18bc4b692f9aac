#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace recurve {

// The journal of a store of states: groups of entries, one behind the other, each with a checksum.
// Numbers are little-endian; a text is its length, u32, and its bytes.
//
//   8  "RCRVJRNL"     then for each group:   4  "RJNL"
//   4  u32 version, 2                        4  u32 L, bytes of what follows the checksum
//   8  u64 checksum of those 12              8  u64 checksum of those L, as server/state has it
//                                            L  entries: u8 kind, and what the kind has
//
// What is committed together is one group, so that a loss of power leaves all of it or nothing,
// whichever of its sectors are there. In version 1 each entry was a group of its own.
//
// The entries of a file begin with a snapshot: all that the files before it came to. So the file
// with the highest number is the journal, and the others are left over.

// A state is in this place from now on. kind 1: u64 id, u64 segment (0: a file of its own), u64
// offset, u64 bytes.
struct StateLocation {
  uint64_t id = 0, segment = 0, offset = 0, bytes = 0;
};
// The record of a key. kind 2: text key, text, u32 number of states, u64 id of each.
struct RecordEntry {
  std::string key, text;
  std::vector<uint64_t> states;
};
// The record of that key is gone. kind 3: text key.
struct RecordRemoved {
  std::string key;
};
using JournalEntry = std::variant<StateLocation, RecordEntry, RecordRemoved>;

inline constexpr std::string_view kJournalMagic = "RCRVJRNL";

std::string journal_beginning();
void append_entry(const JournalEntry& entry, std::string* entries);
// Of one that append_entry() has made of a RecordEntry: that, and its key alone.
RecordEntry record_of(std::string_view entry);
std::string_view key_of_record(std::string_view entry);
// Entries as a group.
std::string journal_group(std::string_view entries);

struct JournalContents {
  std::vector<JournalEntry> entries;
  // There is something between its groups that is none: it was not cut off, but damaged.
  bool damaged = false;
};
// What is behind the last group that is whole was never acknowledged, and is left out. Throws
// std::runtime_error with a sentence if the journal is of a newer version.
JournalContents parse_journal(std::string_view journal);

}  // namespace recurve

// A store of states: what is found in its folder at the start.
#include <algorithm>
#include <functional>
#include <set>
#include <span>
#include <system_error>
#include <type_traits>

#include "server/storage/file_names.h"
#include "server/storage/state_store.h"

namespace recurve {
namespace {

// A journal as far as it can be read; nothing where there is none.
JournalContents journal_in(FileSystem& files, const std::string& name) {
  std::string bytes;
  try {
    const auto reader = files.open(name);
    bytes.resize(reader->bytes());
    reader->read_what_is_whole(0, std::as_writable_bytes(std::span(bytes)));
  } catch (const std::system_error&) {  // none of it can be
  }
  return parse_journal(bytes);
}

bool has(const std::vector<FileSystem::Entry>& files, std::string_view name) {
  return std::ranges::find(files, name, &FileSystem::Entry::name) != files.end();
}

}  // namespace

void StateStore::recover() {
  const std::vector<FileSystem::Entry> files = files_->list();
  std::set<uint64_t, std::greater<>> journals;
  bool has_states = false;
  for (const auto& file : files) {
    std::string_view name = file.name;
    const uint64_t journal = std::max(number_of(name, kJournalFile), number_of(name, kJournalCopy));
    if (journal > 0) journals.insert(journal);
    has_states |= number_of(name, kSegmentFile) + number_of(name, kStateFile) > 0;
    // Names of what was set aside, or begun, are not used again either.
    if (name.starts_with(kSetAside)) name.remove_prefix(kSetAside.size());
    if (name.ends_with(kBeingMade)) name.remove_suffix(kBeingMade.size());
    journal_number_ =
        std::max({journal_number_, number_of(name, kJournalFile), number_of(name, kJournalCopy)});
    segment_number_ = std::max(segment_number_, number_of(name, kSegmentFile));
    next_id_ = std::max(next_id_, number_of(name, kStateFile) + 1);
  }
  JournalContents found;
  std::set<std::string> bad;
  for (const uint64_t number : journals) {
    found = read_journal(number, files, &bad);
    if (!found.damaged || !found.entries.empty()) break;  // else it is none
  }
  damage_.journal = !bad.empty();
  // States without any journal were named by one that is gone.
  const bool none = journals.empty() || (found.damaged && found.groups.empty());
  damage_.records_lost = gaps_in(found).any || (none && has_states);
  adopt(found);
  drop_expendable(find_files(files));
  try {
    begin_journal();
    for (const std::string& name : bad) set_aside(name);
  } catch (const std::exception& error) {
    not_writable_ = error.what();
    return;  // what is left over is swept at another start
  }
  sweep(files, bad);
}

// What a journal and its copy have between them. The copy is read where the journal may lack
// something: it has the same bytes.
JournalContents StateStore::read_journal(uint64_t number,
                                         const std::vector<FileSystem::Entry>& files,
                                         std::set<std::string>* bad) {
  const std::string name = file_name(kJournalFile, number), copy = file_name(kJournalCopy, number);
  const auto bytes_of = [&](const std::string& of) -> uint64_t {
    const auto file = std::ranges::find(files, of, &FileSystem::Entry::name);
    return file == files.end() ? 0 : file->bytes;
  };
  JournalContents found = journal_in(*files_, name);
  if (found.damaged && bytes_of(name) > 0) bad->insert(name);
  const bool whole = !found.damaged && !found.has_tail && !gaps_in(found).any;
  if (!has(files, copy) || (whole && bytes_of(copy) <= bytes_of(name))) return found;
  JournalContents other = journal_in(*files_, copy);
  // A loss of power may damage any group of it that was not synced.
  if (other.damaged && found.groups.empty()) bad->insert(copy);
  return merge_journals(std::move(found), std::move(other));
}

// All that are there now may have been replaced by others that are lost.
void StateStore::doubt_records() {
  std::vector<RecordEntry> doubted;
  for (const std::string& entry : records_) {
    if (!is_expendable(key_of_record(entry))) doubted.push_back(record_of(entry));
  }
  for (RecordEntry& record : doubted) {
    record.in_doubt = true;
    records_.put(record);
  }
}

void StateStore::adopt(const JournalContents& found) {
  const auto put = [&](const auto& entry) {
    using Kind = std::decay_t<decltype(entry)>;
    if constexpr (std::is_same_v<Kind, StateLocation>) {
      Place& place = places_[entry.id];
      place.segment = entry.segment;
      place.offset = entry.offset;
      place.bytes = entry.bytes;
      place.durable = true;
      next_id_ = std::max(next_id_, entry.id + 1);
      segment_number_ = std::max(segment_number_, entry.segment);
    } else if constexpr (std::is_same_v<Kind, RecordEntry>) {
      records_.put(entry);
    } else {
      records_.remove(entry.key);
    }
  };
  const size_t whole_from = gaps_in(found).whole_from;
  for (size_t e = 0; e < found.entries.size(); ++e) {
    if (whole_from > 0 && e == whole_from) doubt_records();
    std::visit(put, found.entries[e]);
  }
  // A place that was never said, where the journal is damaged, is one where nothing is.
  for (const std::string& entry : records_) {
    const RecordEntry record = record_of(entry);
    damage_.in_doubt += record.in_doubt;
    for (const uint64_t id : record.states) ++places_.try_emplace(id).first->second.records;
  }
  std::erase_if(places_, [](const auto& place) { return place.second.records == 0; });
}

// Which of the states are there, and in files of what length; the ids of those that have none.
std::set<uint64_t> StateStore::find_files(const std::vector<FileSystem::Entry>& files) {
  std::unordered_map<std::string, uint64_t> bytes;
  std::set<uint64_t> gone;
  for (const auto& file : files) {
    bytes[file.name] = file.bytes;
    usage_.bytes += file.bytes;
    usage_.set_aside += file.name.starts_with(kSetAside);
  }
  for (auto& [id, place] : places_) {
    const bool own = place.segment == 0;
    const std::string name =
        own ? file_name(kStateFile, id) : file_name(kSegmentFile, place.segment);
    const auto file = bytes.find(name);
    place.missing = place.bytes == 0 || file == bytes.end() || file->second < place.bytes ||
                    file->second - place.bytes < place.offset;
    if (place.bytes == 0 || file == bytes.end()) gone.insert(id);
    damage_.states_gone += place.missing;
    if (own || file == bytes.end()) continue;
    Segment& segment = segments_[place.segment];
    segment.bytes = file->second;
    segment.live += place.bytes;
  }
  return gone;
}

// Records whose states went before the journal could say so.
void StateStore::drop_expendable(const std::set<uint64_t>& gone) {
  std::vector<RecordEntry> dropped;
  for (auto entry = records_.begin(kExpendable); entry != records_.end(); ++entry) {
    if (gone.empty() || !is_expendable(key_of_record(*entry))) break;
    RecordEntry record = record_of(*entry);
    const auto is_gone = [&](uint64_t id) { return gone.contains(id); };
    if (std::ranges::any_of(record.states, is_gone)) dropped.push_back(std::move(record));
  }
  for (const RecordEntry& record : dropped) {
    records_.remove(record.key);
    for (const uint64_t id : record.states) {
      const auto at = places_.find(id);
      damage_.states_gone -= at->second.missing;
      if (--at->second.records == 0) forget(at);
    }
  }
}

// One after the other: what was handed over makes room for the next.
void StateStore::for_each_record(std::string_view begins,
                                 const std::function<void(Record record)>& take) {
  for (auto entry = records_.begin(begins); entry != records_.end(); ++entry) {
    if (!key_of_record(*entry).starts_with(begins)) return;
    RecordEntry of = record_of(*entry);
    Record record{std::move(of.key), std::move(of.text), {}, of.in_doubt};
    {
      const std::lock_guard lock(mutex_);
      for (const uint64_t id : of.states) record.states.push_back(handle(id, places_.at(id)));
    }
    take(std::move(record));
  }
}

// What no record names is left over from a commit that did not end, unless records are lost, or it
// is something else.
void StateStore::sweep(const std::vector<FileSystem::Entry>& files,
                       const std::set<std::string>& bad) {
  for (const auto& [name, bytes] : files) {
    const uint64_t state = number_of(name, kStateFile), segment = number_of(name, kSegmentFile);
    const uint64_t journal = std::max(number_of(name, kJournalFile), number_of(name, kJournalCopy));
    const bool begun = name.starts_with(kJournalFile) && name.ends_with(kBeingMade);
    if (state + segment + journal == 0 && !begun) continue;
    if (places_.contains(state) || segments_.contains(segment)) continue;
    if (bad.contains(name)) continue;
    const bool wanted = journal == 0 && !begun && damage_.records_lost;
    try {
      if (wanted || !is_left_over(name, bytes)) {
        set_aside(name);
      } else {
        remove_file(name, bytes);
      }
    } catch (const std::system_error&) {  // it stays where it is
    }
  }
}

// Whether it is as a commit leaves it that does not end: it begins as what it is called, as far as
// it holds anything yet, and is no whole state of another name.
bool StateStore::is_left_over(const std::string& name, uint64_t bytes) {
  const auto reader = files_->open(name);
  const auto read = [&](uint64_t offset, std::span<std::byte> to) { reader->read(offset, to); };
  std::string begin(std::min<uint64_t>(bytes, kStateMagic.size()), '\0');
  try {
    read(0, std::as_writable_bytes(std::span(begin)));
  } catch (const KeyMissing&) {  // it was sealed here
    return true;
  }
  const std::string_view magic = name.starts_with(kJournalFile) ? kJournalMagic : kStateMagic;
  begin.resize(begin.find_last_not_of('\0') + 1);  // what a torn sector has left of it
  if (!magic.starts_with(begin)) return false;
  const uint64_t state = number_of(name, kStateFile);
  if (begin.size() < magic.size() || state == 0) return true;
  try {
    return read_state_header(bytes, read).id == state;
  } catch (const StateError&) {
    return true;
  }
}

void StateStore::set_aside(const std::string& name) {
  files_->rename(name, std::string(kSetAside) + name);
  const std::lock_guard lock(mutex_);
  ++usage_.set_aside;
}

StoredPtr StateStore::handle(uint64_t id, Place& place) {
  auto state = std::make_shared<const StoredState>(*this, id, place.durable);
  ++place.handles;
  return state;
}

}  // namespace recurve

// A store of states: what is found in its folder at the start.
#include <algorithm>
#include <span>
#include <system_error>
#include <type_traits>

#include "server/storage/file_names.h"
#include "server/storage/state_store.h"

namespace recurve {
namespace {

std::string whole_file(FileSystem& files, const std::string& name) {
  const auto reader = files.open(name);
  std::string bytes(reader->bytes(), '\0');
  reader->read(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

}  // namespace

void StateStore::recover() {
  const std::vector<FileSystem::Entry> files = files_->list();
  std::vector<uint64_t> journals;
  for (const auto& file : files) {
    std::string_view name = file.name;
    if (const uint64_t journal = number_of(name, kJournalFile)) journals.push_back(journal);
    // Names of what was set aside, or begun, are not used again either.
    if (name.starts_with(kSetAside)) name.remove_prefix(kSetAside.size());
    if (name.ends_with(kBeingMade)) name.remove_suffix(kBeingMade.size());
    journal_number_ = std::max(journal_number_, number_of(name, kJournalFile));
    segment_number_ = std::max(segment_number_, number_of(name, kSegmentFile));
    next_id_ = std::max(next_id_, number_of(name, kStateFile) + 1);
  }
  std::sort(journals.rbegin(), journals.rend());
  JournalContents found;
  std::vector<uint64_t> bad;  // journals
  for (const uint64_t number : journals) {
    found = parse_journal(whole_file(*files_, file_name(kJournalFile, number)));
    if (found.damaged) bad.push_back(number);
    if (!found.damaged || !found.entries.empty()) break;  // else it is none
  }
  adopt(found);
  drop_expendable(find_files(files));
  try {
    begin_journal();
    for (const uint64_t number : bad) set_aside(file_name(kJournalFile, number));
  } catch (const std::exception& error) {
    not_writable_ = error.what();
    return;  // what is left over is swept at another start
  }
  sweep(files, bad);
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
  for (const JournalEntry& entry : found.entries) std::visit(put, entry);
  // A place that was never said, where the journal is damaged, is one where nothing is.
  for (const std::string& entry : records_) {
    for (const uint64_t id : record_of(entry).states)
      ++places_.try_emplace(id).first->second.records;
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
    Record record{std::move(of.key), std::move(of.text), {}};
    {
      const std::lock_guard lock(mutex_);
      for (const uint64_t id : of.states) record.states.push_back(handle(id, places_.at(id)));
    }
    take(std::move(record));
  }
}

// What no record names is left over from a commit that did not end, unless a journal is damaged, or
// it is something else.
void StateStore::sweep(const std::vector<FileSystem::Entry>& files,
                       const std::vector<uint64_t>& bad_journals) {
  for (const auto& [name, bytes] : files) {
    const uint64_t state = number_of(name, kStateFile), segment = number_of(name, kSegmentFile);
    const uint64_t journal = number_of(name, kJournalFile);
    const bool begun = name.starts_with(kJournalFile) && name.ends_with(kBeingMade);
    if (state + segment + journal == 0 && !begun) continue;
    if (places_.contains(state) || segments_.contains(segment)) continue;
    if (std::ranges::find(bad_journals, journal) != bad_journals.end()) continue;
    const bool wanted = journal == 0 && !begun && !bad_journals.empty();
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

// A store of states: recovery of its folder at the start.
#include <algorithm>
#include <functional>
#include <set>
#include <span>
#include <system_error>
#include <type_traits>

#include "server/storage/file_names.h"
#include "server/storage/state_store.h"

namespace recurve {

void StateStore::recover() {
  const std::vector<FileSystem::Entry> files = files_.system().list();
  files_.count(files);
  bool has_states = false;
  for (const auto& [name, bytes] : files) {
    has_states |= number_of(name, kSegmentFile) + number_of(name, kStateFile) > 0;
    next_id_ = std::max(next_id_, number_of(final_name(name), kStateFile) + 1);
  }
  const RecordLog::Found found = log_.read(files);
  damage_.journal = !found.damaged.empty();
  // States without any journal were named by a journal that is lost.
  const bool none = !found.any || (found.contents.damaged && found.contents.groups.empty());
  damage_.records_lost = gaps_in(found.contents).any || (none && has_states);
  adopt(found.contents);
  drop_expendable(blobs_.find_files(files));
  for (const auto& [id, refs] : refs_) damage_.states_gone += refs.records > 0 && any_gone(id);
  try {
    begin_journal();
    for (const std::string& name : found.damaged) files_.set_aside(name);
  } catch (const std::exception& error) {
    not_writable_ = error.what();
    return;  // leftover files are deleted at a later start
  }
  sweep(files, found.damaged);
}

// All records that exist now may have been replaced by others that are lost.
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
  RefsById paged;
  const auto put = [&](const auto& entry) {
    using Kind = std::decay_t<decltype(entry)>;
    if constexpr (std::is_same_v<Kind, StateLocation>) {
      blobs_.adopt(entry);
      next_id_ = std::max(next_id_, entry.id + 1);
    } else if constexpr (std::is_same_v<Kind, PagedLocation>) {
      blobs_.adopt(entry.at);
      next_id_ = std::max(next_id_, entry.at.id + 1);
      paged[entry.at.id] = {.base = entry.base,
                            .pages = static_cast<int64_t>(entry.pages),
                            .checksum = entry.checksum};
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
  for (const std::string& entry : records_) {
    const RecordEntry record = record_of(entry);
    damage_.in_doubt += record.in_doubt;
    for (const uint64_t id : record.states) ++refs_[id].records;
  }
  count_groups(paged);
  blobs_.retain([this](uint64_t id) { return refs_.contains(id); });
  // A damaged journal may lack a location; then there is no state.
  for (auto& [id, refs] : refs_) {
    refs.durable = blobs_.contains(id);
    if (!refs.durable) blobs_.adopt({.id = id});
  }
}

// References the page groups of the states that records name.
void StateStore::count_groups(const RefsById& paged) {
  std::vector<uint64_t> named;
  for (const auto& [id, refs] : refs_) named.push_back(id);
  for (uint64_t id : named) {
    for (auto at = paged.find(id); at != paged.end(); at = paged.find(id)) {
      Refs& refs = refs_[id];
      refs.base = at->second.base;
      refs.pages = at->second.pages;
      refs.checksum = at->second.checksum;
      // The pages become fewer along a chain, so that it ends.
      const auto base = paged.find(refs.base);
      const bool ends =
          base == paged.end() ||
          (base->second.pages > 0 && (refs.pages == 0 || base->second.pages < refs.pages));
      if (!ends) refs.base = 0;
      if (refs.base == 0 || refs_[refs.base].states++ > 0) break;  // those before it are counted
      id = refs.base;
    }
  }
}

// Drops records whose states, or page groups of them, were deleted before the journal had their
// removal.
void StateStore::drop_expendable(const std::set<uint64_t>& gone) {
  std::vector<RecordEntry> dropped;
  for (auto entry = records_.begin(kExpendable); entry != records_.end(); ++entry) {
    if (gone.empty() || !is_expendable(key_of_record(*entry))) break;
    RecordEntry record = record_of(*entry);
    const auto is_gone = [&](uint64_t id) {
      for (; id > 0 && !gone.contains(id); id = refs_.at(id).base) continue;
      return id > 0;
    };
    if (std::ranges::any_of(record.states, is_gone)) dropped.push_back(std::move(record));
  }
  for (const RecordEntry& record : dropped) {
    records_.remove(record.key);
    unname(record.states);
  }
  remove_released();
}

// One after the other: handing over a record frees memory for the next.
void StateStore::for_each_record(std::string_view begins,
                                 const std::function<void(Record record)>& take) {
  for (auto entry = records_.begin(begins); entry != records_.end(); ++entry) {
    if (!key_of_record(*entry).starts_with(begins)) return;
    RecordEntry of = record_of(*entry);
    Record record{std::move(of.key), std::move(of.text), {}, of.in_doubt};
    {
      const std::lock_guard lock(mutex_);
      for (const uint64_t id : of.states) record.states.push_back(handle(id, refs_.at(id)));
    }
    take(std::move(record));
  }
}

// A file that no record names is left from an incomplete commit, unless records are lost or the
// file is foreign.
void StateStore::sweep(const std::vector<FileSystem::Entry>& files,
                       const std::set<std::string>& damaged) {
  for (const auto& [name, bytes] : files) {
    const uint64_t state = number_of(name, kStateFile), segment = number_of(name, kSegmentFile);
    const uint64_t journal = std::max(number_of(name, kJournalFile), number_of(name, kJournalCopy));
    const bool begun = name.starts_with(kJournalFile) && name.ends_with(kIncomplete);
    if (state + segment + journal == 0 && !begun) continue;
    if (blobs_.has_file(name) || damaged.contains(name)) continue;
    const bool wanted = journal == 0 && !begun && damage_.records_lost;
    try {
      if (wanted || !is_left_over(name, bytes)) {
        files_.set_aside(name);
      } else {
        files_.remove(name, bytes);
      }
    } catch (const std::system_error&) {  // the file stays where it is
    }
  }
}

// Whether the file can be the result of an incomplete commit: its beginning, as far as it is
// written, fits its name, and it is not a complete state of another name.
bool StateStore::is_left_over(const std::string& name, uint64_t bytes) {
  const auto reader = files_.system().open(name);
  const auto read = [&](uint64_t offset, std::span<std::byte> to) { reader->read(offset, to); };
  std::string begin(std::min<uint64_t>(bytes, kStateMagic.size()), '\0');
  try {
    read(0, std::as_writable_bytes(std::span(begin)));
  } catch (const KeyMissing&) {  // this store has sealed it
    return true;
  }
  const std::string_view magic = name.starts_with(kJournalFile) ? kJournalMagic : kStateMagic;
  begin.resize(begin.find_last_not_of('\0') + 1);  // a torn sector ends in zeros
  if (!magic.starts_with(begin)) return false;
  const uint64_t state = number_of(name, kStateFile);
  if (begin.size() < magic.size() || state == 0) return true;
  try {
    return read_id(bytes, read) == state;
  } catch (const StateError&) {
    return true;
  }
}

}  // namespace recurve

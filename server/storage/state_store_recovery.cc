// A store of states: what is found in its folder at the start.
#include <algorithm>
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
  for (const auto& file : files) {
    journal_number_ = std::max(journal_number_, number_of(file.name, kJournalFile));
    segment_number_ = std::max(segment_number_, number_of(file.name, kSegmentFile));
    next_id_ = std::max(next_id_, number_of(file.name, kStateFile) + 1);
  }
  const uint64_t found_number = journal_number_;
  JournalContents found;
  if (found_number > 0) {
    found = parse_journal(whole_file(*files_, file_name(kJournalFile, found_number)));
    adopt(found);
  }
  find_files(files);
  begin_journal();
  if (found.damaged) {
    set_aside(file_name(kJournalFile, found_number));
    ++usage_.set_aside;
  }
  sweep(files, found.damaged);
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
    } else if constexpr (std::is_same_v<Kind, RecordEntry>) {
      records_[entry.key] = {entry.text, entry.states};
    } else {
      records_.erase(entry.key);
    }
  };
  for (const JournalEntry& entry : found.entries) std::visit(put, entry);
  // A place that was never said, where the journal is damaged, is one where nothing is.
  for (const auto& [key, record] : records_) {
    for (const uint64_t id : record.states) ++places_.try_emplace(id).first->second.records;
  }
  std::erase_if(places_, [](const auto& place) { return place.second.records == 0; });
}

// Which of the states are there, and in files of what length.
void StateStore::find_files(const std::vector<FileSystem::Entry>& files) {
  std::unordered_map<std::string, uint64_t> bytes;
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
    place.missing =
        place.bytes == 0 || file == bytes.end() || file->second < place.offset + place.bytes;
    if (own || file == bytes.end()) continue;
    Segment& segment = segments_[place.segment];
    segment.bytes = file->second;
    segment.live += place.bytes;
  }
  for (const auto& [key, record] : records_) {
    Record& out = recovered_.emplace_back(Record{key, record.text, {}});
    for (const uint64_t id : record.states) out.states.push_back(handle(id, places_.at(id)));
  }
}

// What no record names is left over from a commit that did not end, unless the journal is damaged.
void StateStore::sweep(const std::vector<FileSystem::Entry>& files, bool damaged) {
  for (const auto& [name, bytes] : files) {
    const uint64_t state = number_of(name, kStateFile), segment = number_of(name, kSegmentFile);
    const uint64_t journal = number_of(name, kJournalFile);
    const bool wanted = places_.contains(state) || segments_.contains(segment);
    if (name.starts_with(kJournalFile) && (journal == 0 || journal < journal_number_)) {
      if (journal == 0 && !name.ends_with(kBeingMade)) continue;
      if (!damaged || journal == 0 || journal + 1 != journal_number_) remove_file(name, bytes);
    } else if ((state > 0 || segment > 0) && !wanted) {
      if (damaged) {
        set_aside(name);
        ++usage_.set_aside;
      } else {
        remove_file(name, bytes);
      }
    }
  }
}

void StateStore::set_aside(const std::string& name) {
  files_->rename(name, std::string(kSetAside) + name);
}

StoredPtr StateStore::handle(uint64_t id, Place& place) {
  auto state = std::make_shared<const StoredState>(*this, id, place.durable);
  ++place.handles;
  return state;
}

}  // namespace recurve

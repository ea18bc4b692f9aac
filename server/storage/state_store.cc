#include "server/storage/state_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>

namespace recurve {
namespace {

constexpr std::string_view kJournal = "journal-", kSegment = "segment-", kState = "state-";
constexpr std::string_view kNew = ".new", kSetAside = "set-aside-";

std::string numbered(std::string_view prefix, uint64_t number) {
  return fmt::format("{}{}", prefix, number);
}

// The number of a file of that kind; 0: it is none.
uint64_t number_of(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return 0;
  name.remove_prefix(prefix.size());
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  return error == std::errc() && end == name.data() + name.size() ? number : 0;
}

std::string whole_file(FileSystem& files, const std::string& name) {
  const auto reader = files.open(name);
  std::string bytes(reader->bytes(), '\0');
  reader->read(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

std::string_view text_of(const std::byte* bytes, size_t count) {
  return {reinterpret_cast<const char*>(bytes), count};
}

}  // namespace

// What has become of a change so far.
struct StateStore::Written {
  std::string error = {};
  Place place = {};  // of its state
  bool has_state = false, in_segment = false, own_file = false;
};

StoredState::~StoredState() { store_.let_go(id_); }

StateStore::StateStore(std::unique_ptr<FileSystem> files, const Options& options)
    : files_(std::move(files)), options_(options) {
  recover();
}

StateStore::~StateStore() = default;

uint64_t StateStore::new_id() {
  const std::lock_guard lock(mutex_);
  return next_id_++;
}

// At the start.

void StateStore::recover() {
  const std::vector<FileSystem::Entry> files = files_->list();
  for (const auto& file : files) {
    journal_number_ = std::max(journal_number_, number_of(file.name, kJournal));
    segment_number_ = std::max(segment_number_, number_of(file.name, kSegment));
    next_id_ = std::max(next_id_, number_of(file.name, kState) + 1);
  }
  const uint64_t found_number = journal_number_;
  JournalContents found;
  if (found_number > 0) {
    found = parse_journal(whole_file(*files_, numbered(kJournal, found_number)));
    adopt(found);
  }
  find_files(files);
  begin_journal();
  if (found.damaged) {
    set_aside(numbered(kJournal, found_number));
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
    const std::string name = own ? numbered(kState, id) : numbered(kSegment, place.segment);
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
    const uint64_t state = number_of(name, kState), segment = number_of(name, kSegment);
    const uint64_t journal = number_of(name, kJournal);
    const bool wanted = places_.contains(state) || segments_.contains(segment);
    if (name.starts_with(kJournal) && (journal == 0 || journal < journal_number_)) {
      if (journal == 0 && !name.ends_with(kNew)) continue;
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

// A commit.

std::vector<StateStore::Outcome> StateStore::commit(std::span<const Change> changes) {
  make_room(changes);
  std::vector<Written> written(changes.size());
  write_states(changes, &written);
  write_journal(changes, &written);
  std::vector<Outcome> outcomes(changes.size());
  const std::lock_guard lock(mutex_);
  for (size_t c = 0; c < changes.size(); ++c) apply(changes[c], &written[c], &outcomes[c]);
  return outcomes;
}

// Nothing is removed once the first state is written, as nothing names it yet.
void StateStore::make_room(std::span<const Change> changes) {
  uint64_t wanted = 0;
  for (const Change& change : changes) {
    constexpr uint64_t kFrame = 64 << 10;
    wanted +=
        change.text.size() + (change.state ? change.state->header.layout.bytes() + kFrame : 0);
  }
  const auto full = [&] { return usage().bytes + wanted > options_.most_bytes; };
  while (full() && tidy(Hurry::kFull)) continue;
}

void StateStore::write_states(std::span<const Change> changes, std::vector<Written>* written) {
  bool durable = false;
  for (size_t c = 0; c < changes.size(); ++c) {
    if (!changes[c].state) continue;
    Written& one = (*written)[c];
    durable |= !changes[c].key.empty();
    try {
      write_state(changes[c], &one);
    } catch (const std::exception& error) {
      one.error = error.what();
      if (one.in_segment) give_up_segment(error.what(), written);
    }
  }
  if (durable) sync_states(written);
}

void StateStore::write_state(const Change& change, Written* written) {
  const StateHeader& header = change.state->header;
  const size_t bytes = header.layout.bytes();
  const std::byte* image = change.state->image.get();
  const StateFrame frame = frame_of(header, {image, bytes});
  Place& place = written->place;
  const uint64_t all = frame.bytes(bytes);
  check_room(all);
  place.durable = !change.key.empty();
  written->in_segment = all < options_.own_file;
  std::unique_ptr<FileSystem::Writer> own;
  if (written->in_segment) {
    place = place_in_segment(all, place.durable);
  } else {
    place.bytes = all;
    written->own_file = true;
    own = files_->create(numbered(kState, header.id));
    folder_dirty_ = true;
    const std::lock_guard lock(mutex_);
    usage_.bytes += all;
  }
  FileSystem::Writer& writer = own ? *own : *segment_;
  writer.append(frame.front);
  writer.append(text_of(image, bytes));
  writer.append(frame.back);
  written->has_state = true;
  if (own != nullptr && place.durable) sync(*own);
}

// The place of the next bytes of the open segment, which are to be appended.
StateStore::Place StateStore::place_in_segment(uint64_t bytes, bool durable) {
  open_segment();
  segment_dirty_ = true;
  const std::lock_guard lock(mutex_);
  Segment& segment = segments_[segment_number_];
  const Place place{
      .segment = segment_number_, .offset = segment.bytes, .bytes = bytes, .durable = durable};
  segment.bytes += bytes;
  usage_.bytes += bytes;
  return place;
}

void StateStore::sync(FileSystem::Writer& writer) {
  writer.sync();
  const std::lock_guard lock(mutex_);
  ++usage_.syncs;
}

void StateStore::open_segment() {
  {
    const std::lock_guard lock(mutex_);
    const bool full = segment_ && segments_[segment_number_].bytes >= options_.segment_bytes;
    if (segment_ && !full) return;
  }
  sync_segment();
  segment_.reset();
  ++segment_number_;
  const std::string name = numbered(kSegment, segment_number_);
  segment_ = files_->create(name);
  folder_dirty_ = true;
  const std::lock_guard lock(mutex_);
  segments_[segment_number_].reader = files_->open(name);
}

void StateStore::sync_segment() {
  if (segment_ && segment_dirty_) sync(*segment_);
  segment_dirty_ = false;
}

// Nothing is known of what was appended to it since its last sync: what is to last of that is not
// done.
void StateStore::give_up_segment(const char* why, std::vector<Written>* written) {
  segment_.reset();
  segment_dirty_ = false;
  for (Written& one : *written) {
    const bool unknown = one.place.segment == segment_number_ && one.place.durable;
    if (one.has_state && unknown && one.error.empty()) one.error = why;
  }
}

// States that are to last are there before anything names them.
void StateStore::sync_states(std::vector<Written>* written) {
  try {
    sync_segment();
  } catch (const std::exception& error) {
    give_up_segment(error.what(), written);
  }
  try {
    if (folder_dirty_) files_->sync_folder();
    folder_dirty_ = false;
  } catch (const std::exception& error) {
    for (Written& one : *written) {
      if (one.has_state && one.place.durable && one.error.empty()) one.error = error.what();
    }
  }
}

void StateStore::write_journal(std::span<const Change> changes, std::vector<Written>* written) {
  std::string entries;
  for (size_t c = 0; c < changes.size(); ++c) {
    const Change& change = changes[c];
    Written& one = (*written)[c];
    if (change.key.empty() || !one.error.empty()) continue;
    if (one.has_state) write_location(change.state->header.id, one.place, &entries);
    if (change.removes) {
      append_entry(RecordRemoved{change.key}, &entries);
    } else {
      append_entry(RecordEntry{change.key, change.text, change.states}, &entries);
    }
  }
  if (entries.empty()) return;
  try {
    if (journal_ == nullptr || journal_bytes_ > 2 * snapshot_bytes_ + options_.journal_slack)
      begin_journal();
    check_room(entries.size());
    append_to_journal(entries);
  } catch (const std::exception& error) {
    for (size_t c = 0; c < changes.size(); ++c) {
      Written& one = (*written)[c];
      if (!changes[c].key.empty() && one.error.empty()) one.error = error.what();
    }
  }
}

// If it fails, what of it is there is unknown: the next commit begins a journal of what was there
// before, and until then no file is removed that it may name.
void StateStore::append_to_journal(const std::string& entries) {
  std::unique_ptr<FileSystem::Writer> journal = std::move(journal_);
  journal->append(entries);
  sync(*journal);
  journal_ = std::move(journal);
  journal_bytes_ += entries.size();
  const std::lock_guard lock(mutex_);
  usage_.bytes += entries.size();
}

void StateStore::write_location(uint64_t id, const Place& place, std::string* to) const {
  append_entry(StateLocation{id, place.segment, place.offset, place.bytes}, to);
}

// The journal of the next number, with all that there is, in the place of the one before it.
void StateStore::begin_journal() {
  const std::string all = snapshot();
  const std::string name = numbered(kJournal, journal_number_ + 1), made = name + std::string(kNew);
  const std::string before = numbered(kJournal, journal_number_);
  journal_.reset();
  std::unique_ptr<FileSystem::Writer> writer = files_->create(made);
  writer->append(all);
  writer->sync();
  files_->rename(made, name);
  files_->sync_folder();
  folder_dirty_ = false;
  if (journal_bytes_ > 0) to_remove_.emplace_back(before, journal_bytes_);
  journal_ = std::move(writer);
  ++journal_number_;
  journal_bytes_ = snapshot_bytes_ = all.size();
  const std::lock_guard lock(mutex_);
  usage_.bytes += all.size();
}

std::string StateStore::snapshot() const {
  std::string all = journal_beginning();
  const std::lock_guard lock(mutex_);
  for (const auto& [id, place] : places_) {
    if (place.records > 0) write_location(id, place, &all);
  }
  for (const auto& [key, record] : records_) {
    append_entry(RecordEntry{key, record.text, record.states}, &all);
  }
  return all;
}

void StateStore::apply(const Change& change, Written* written, Outcome* outcome) {
  outcome->error = std::move(written->error);
  const bool done = outcome->error.empty();
  if (written->has_state && done) {
    Place& place = places_[change.state->header.id];
    place = written->place;
    if (place.segment > 0) segments_[place.segment].live += place.bytes;
    outcome->state = handle(change.state->header.id, place);
  } else if (written->own_file) {
    to_remove_.emplace_back(numbered(kState, change.state->header.id), written->place.bytes);
  }
  if (change.key.empty() || !done) return;
  for (const uint64_t id : change.states) ++places_[id].records;
  const auto before = records_.find(change.key);
  if (before != records_.end()) unname(before->second.states);
  if (change.removes) {
    if (before != records_.end()) records_.erase(before);
  } else {
    records_[change.key] = {change.text, change.states};
  }
}

void StateStore::unname(const std::vector<uint64_t>& states) {
  for (const uint64_t id : states) {
    if (--places_[id].records == 0) let_go_.push_back(id);
  }
}

void StateStore::check_room(uint64_t bytes) {
  if (usage().bytes + bytes <= options_.most_bytes) return;
  throw std::runtime_error(
      fmt::format("the {} bytes of --state-disk are full: close sessions, or give it more",
                  options_.most_bytes));
}

// What nobody wants any more.

void StateStore::let_go(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto at = places_.find(id);
  if (at != places_.end() && --at->second.handles == 0) let_go_.push_back(id);
}

void StateStore::forget(Places::iterator at) {
  const Place& place = at->second;
  if (place.segment == 0) {
    if (!place.missing) to_remove_.emplace_back(numbered(kState, at->first), place.bytes);
  } else if (const auto segment = segments_.find(place.segment); segment != segments_.end()) {
    segment->second.live -= place.bytes;
  }
  places_.erase(at);
}

bool StateStore::tidy(Hurry hurry) {
  // A journal whose end is unknown may name what nobody wants.
  try {
    if (journal_ == nullptr) begin_journal();
  } catch (const std::exception&) {
    return false;
  }
  uint64_t sparse = 0;
  std::vector<std::pair<std::string, uint64_t>> removed;
  {
    const std::lock_guard lock(mutex_);
    for (const uint64_t id : std::exchange(let_go_, {})) {
      const auto at = places_.find(id);
      if (at == places_.end() || at->second.records > 0 || at->second.handles > 0) continue;
      forget(at);
    }
    uint64_t most = 0;
    for (auto at = segments_.begin(); at != segments_.end();) {
      const auto& [number, segment] = *at;
      const bool open = segment_ && number == segment_number_;
      if (segment.live == 0 && !open) {
        removed.emplace_back(numbered(kSegment, number), segment.bytes);
        at = segments_.erase(at);
        continue;
      }
      const uint64_t dead = segment.bytes - segment.live;
      const bool worth = (hurry == Hurry::kFull ? 4 : 2) * dead >= segment.bytes;
      if (!open && worth && dead > most) sparse = number, most = dead;
      ++at;
    }
    removed.insert(removed.end(), to_remove_.begin(), to_remove_.end());
    to_remove_.clear();
  }
  for (const auto& [name, bytes] : removed) remove_file(name, bytes);
  return (sparse > 0 && compact(sparse)) || !removed.empty();
}

// What is still wanted of a segment is written behind the last one; then nobody wants the segment.
// Where that fails, all stays where it was.
bool StateStore::compact(uint64_t number) {
  std::vector<std::pair<uint64_t, Place>> moved;
  std::shared_ptr<const FileSystem::Reader> reader;
  try {
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [id, place] : places_) {
        if (place.segment == number && !place.missing) moved.emplace_back(id, place);
      }
      reader = segment_reader(number);
    }
    std::string entries;
    for (auto& [id, place] : moved) {
      std::string bytes(place.bytes, '\0');
      reader->read(place.offset, std::as_writable_bytes(std::span(bytes)));
      place = place_in_segment(place.bytes, place.durable);
      segment_->append(bytes);
      if (place.durable) write_location(id, place, &entries);
    }
    sync_segment();
    if (folder_dirty_) files_->sync_folder();
    folder_dirty_ = false;
    append_to_journal(entries);
  } catch (const std::exception&) {
    segment_.reset();
    segment_dirty_ = false;
    return false;
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [id, place] : moved) {
    Place& at = places_.at(id);
    segments_[number].live -= at.bytes;
    segments_[place.segment].live += place.bytes;
    at.segment = place.segment;
    at.offset = place.offset;
  }
  return true;
}

// A file that cannot be removed now is swept at the next start.
void StateStore::remove_file(const std::string& name, uint64_t bytes) {
  try {
    files_->remove(name);
  } catch (const std::exception&) {
    return;
  }
  const std::lock_guard lock(mutex_);
  usage_.bytes -= std::min(bytes, usage_.bytes);
}

// Reading.

std::shared_ptr<const FileSystem::Reader> StateStore::segment_reader(uint64_t number) {
  Segment& segment = segments_.at(number);
  if (segment.reader == nullptr) segment.reader = files_->open(numbered(kSegment, number));
  return segment.reader;
}

// A segment is opened before it can be removed; a file of its own is there as long as its handle.
std::shared_ptr<const FileSystem::Reader> StateStore::reader_of(const StoredState& state,
                                                                Place* place) {
  {
    const std::lock_guard lock(mutex_);
    *place = places_.at(state.id());
    if (place->missing) {
      throw StateError(StateError::Kind::kDamaged, "its file is gone, or has been cut off");
    }
    if (place->segment > 0) return segment_reader(place->segment);
  }
  return files_->open(numbered(kState, state.id()));
}

StateHeader StateStore::read(const StoredState& state, const StateHeader& wanted,
                             std::span<std::byte> image) {
  Place place;
  const auto reader = reader_of(state, &place);
  const auto read_at = [&](uint64_t offset, std::span<std::byte> to) {
    reader->read(place.offset + offset, to);
  };
  StateHeader header = read_state(place.bytes, read_at, wanted, image);
  if (header.id == state.id()) return header;
  throw StateError(StateError::Kind::kDamaged,
                   fmt::format("its file holds state {} where {} must be: files were exchanged",
                               header.id, state.id()));
}

uint64_t StateStore::bytes_of(const StoredState& state) const {
  const std::lock_guard lock(mutex_);
  return places_.at(state.id()).bytes;
}

void StateStore::read_bytes(const StoredState& state, uint64_t offset, std::span<std::byte> to) {
  Place place;
  const auto reader = reader_of(state, &place);
  reader->read(place.offset + offset, to);
}

void StateStore::set_aside(const StoredState& state) {
  Place place;
  const auto reader = reader_of(state, &place);
  const std::string name = numbered(kState, state.id());
  if (place.segment == 0) {
    set_aside(name);
  } else {
    std::string bytes(place.bytes, '\0');
    reader->read(place.offset, std::as_writable_bytes(std::span(bytes)));
    files_->create(std::string(kSetAside) + name)->append(bytes);
  }
  const std::lock_guard lock(mutex_);
  ++usage_.set_aside;
  places_.at(state.id()).missing = true;
}

StateStore::Usage StateStore::usage() const {
  const std::lock_guard lock(mutex_);
  Usage usage = usage_;
  usage.states = static_cast<int64_t>(places_.size());
  usage.records = static_cast<int64_t>(records_.size());
  return usage;
}

}  // namespace recurve

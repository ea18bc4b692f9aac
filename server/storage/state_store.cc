// A store of states: how a group of changes is committed.
#include "server/storage/state_store.h"

#include <algorithm>
#include <stdexcept>

#include "server/storage/file_names.h"

namespace recurve {
// What has become of a change so far.
struct StateStore::Written {
  std::string error = {};
  Place place = {};  // of its state
  bool has_state = false, in_segment = false, own_file = false;
};

StateStore::StateStore(std::unique_ptr<FileSystem> files, const Options& options)
    : files_(std::move(files)), options_(options) {
  recover();
}

StateStore::~StateStore() = default;

uint64_t StateStore::new_id() {
  const std::lock_guard lock(mutex_);
  return next_id_++;
}

std::vector<StateStore::Outcome> StateStore::commit(std::span<const Change> changes) {
  if (const std::string why = lost(); !why.empty()) {
    return std::vector<Outcome>(changes.size(), {.error = why});
  }
  give_up_expendable(changes);
  make_room(changes);
  std::vector<Written> written(changes.size());
  write_states(changes, &written);
  write_journal(changes, &written);
  std::vector<Outcome> outcomes(changes.size());
  const std::lock_guard lock(mutex_);
  for (size_t c = 0; c < changes.size(); ++c) apply(changes[c], &written[c], &outcomes[c]);
  return outcomes;
}

// What is to go of these, others may have the room of.
void StateStore::give_up_expendable(std::span<const Change> changes) {
  const std::lock_guard lock(mutex_);
  for (const Change& change : changes) {
    if (!change.removes || !is_expendable(change.key)) continue;
    if (const auto before = records_.find(change.key)) unname(before->states);
    records_.remove(change.key);
  }
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
  leave_full_segment();
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
  const StateFrame frame = frame_of(header, change.state->image);
  Place& place = written->place;
  const uint64_t all = frame.bytes(bytes);
  check_room(all);
  files_->prepare_for(change.tenant);
  place.durable = !change.key.empty();
  written->in_segment = all < options_.own_file;
  std::unique_ptr<FileSystem::Writer> own;
  if (written->in_segment) {
    place = place_in_segment(all, place.durable);
  } else {
    place.bytes = all;
    written->own_file = true;
    own = files_->create(file_name(kStateFile, header.id));
    folder_dirty_ = true;
    const std::lock_guard lock(mutex_);
    usage_.bytes += all;
  }
  FileSystem::Writer& writer = own ? *own : *segment_;
  std::vector<std::string_view> parts = written_parts(change.state->image);
  parts.insert(parts.begin(), frame.front);
  parts.push_back(frame.back);
  writer.append_of(change.tenant, parts);
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

// Between two groups: what is committed together has one sync. What of it is to last has been
// synced by then.
void StateStore::leave_full_segment() {
  const std::lock_guard lock(mutex_);
  if (segment_ && segments_[segment_number_].bytes < options_.segment_bytes) return;
  segment_.reset();
  segment_dirty_ = false;
}

void StateStore::open_segment() {
  if (segment_) return;
  ++segment_number_;
  const std::string name = file_name(kSegmentFile, segment_number_);
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
    if (const std::string why = lost(); !why.empty()) {
      journal_.reset();  // it names what is not committed
      throw std::runtime_error(why);
    }
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
  const std::string group = journal_group(next_group_, entries);
  journal->append(group);
  append_to_copy(group);
  sync(*journal);
  journal_ = std::move(journal);
  ++next_group_;
  journal_bytes_ += group.size();
  const std::lock_guard lock(mutex_);
  usage_.bytes += group.size();
}

// It does without where that fails.
void StateStore::append_to_copy(const std::string& group) {
  if (journal_copy_ == nullptr) return;
  try {
    journal_copy_->append(group);
    const std::lock_guard lock(mutex_);
    usage_.bytes += group.size();
  } catch (const std::system_error&) {
    journal_copy_.reset();
  }
}

void StateStore::write_location(uint64_t id, const Place& place, std::string* to) const {
  append_entry(StateLocation{id, place.segment, place.offset, place.bytes}, to);
}

// The journal of the next number, with all that there is, in the place of the one before it.
void StateStore::begin_journal() {
  uint64_t groups = 0;
  const std::string all = snapshot(&groups);
  const std::string before = file_name(kJournalFile, journal_number_),
                    copy_before = file_name(kJournalCopy, journal_number_);
  journal_.reset();
  remove_file(file_name(kJournalCopy, journal_number_ + 1), 0);  // of an attempt that failed
  std::unique_ptr<FileSystem::Writer> writer =
      write_new(file_name(kJournalFile, journal_number_ + 1), all);
  begin_copy(all);
  files_->sync_folder();
  folder_dirty_ = false;
  if (journal_bytes_ > 0) to_remove_.emplace_back(before, journal_bytes_);
  if (journal_bytes_ > 0) to_remove_.emplace_back(copy_before, journal_bytes_);
  journal_ = std::move(writer);
  next_group_ = groups;
  ++journal_number_;
  journal_bytes_ = snapshot_bytes_ = all.size();
  const std::lock_guard lock(mutex_);
  usage_.bytes += all.size();
}

// Whole under its name, or not there.
std::unique_ptr<FileSystem::Writer> StateStore::write_new(const std::string& name,
                                                          const std::string& all) {
  const std::string made = name + std::string(kBeingMade);
  try {
    std::unique_ptr<FileSystem::Writer> writer = files_->create(made);
    writer->append(all);
    writer->sync();
    files_->rename(made, name);
    return writer;
  } catch (const std::exception&) {
    remove_file(made, 0);  // it takes room where there may be none
    throw;
  }
}

void StateStore::begin_copy(const std::string& all) {
  journal_copy_.reset();
  try {
    journal_copy_ = write_new(file_name(kJournalCopy, journal_number_ + 1), all);
    const std::lock_guard lock(mutex_);
    usage_.bytes += all.size();
  } catch (const std::system_error&) {  // it does without
  }
}

// Each entry is a group: if one is damaged later, the others are not.
std::string StateStore::snapshot(uint64_t* groups) const {
  std::string all, entry;
  const auto end_group = [&] {
    all += journal_group((*groups)++, entry);
    entry.clear();
  };
  const std::lock_guard lock(mutex_);
  for (const auto& [id, place] : places_) {
    if (place.records == 0) continue;
    write_location(id, place, &entry);
    end_group();
  }
  for (const std::string& record : records_) {
    entry = record;
    end_group();
  }
  return journal_beginning(*groups) + all;
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
    to_remove_.emplace_back(file_name(kStateFile, change.state->header.id), written->place.bytes);
  }
  if (change.key.empty() || !done) return;
  for (const uint64_t id : change.states) ++places_[id].records;
  if (const auto before = records_.find(change.key)) unname(before->states);
  if (change.removes) {
    records_.remove(change.key);
  } else {
    records_.put({change.key, change.text, change.states});
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

}  // namespace recurve

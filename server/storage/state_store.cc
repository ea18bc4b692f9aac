// A store of states: how a group of changes is committed, how states are read, and how unused
// states are deleted.
#include "server/storage/state_store.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace recurve {
namespace {

ReadAt reader_of(const FileSystem::Reader& blob) {
  return [&blob](uint64_t offset, std::span<std::byte> to) { blob.read(offset, to); };
}

}  // namespace

StateStore::StateStore(std::unique_ptr<FileSystem> files, const Options& options)
    : files_(std::move(files), options.most_bytes),
      blobs_(files_, {.own_file = options.own_file, .segment_bytes = options.segment_bytes}),
      log_(files_, options.journal_slack) {
  recover();
}

StateStore::~StateStore() = default;

StoredState::~StoredState() { store_.release(id_); }

uint64_t StateStore::new_id() {
  const std::lock_guard lock(mutex_);
  return next_id_++;
}

std::vector<StateStore::Outcome> StateStore::commit(std::span<const Change> changes) {
  if (const std::string why = lost(); !why.empty()) {
    return std::vector<Outcome>(changes.size(), {.error = why});
  }
  give_up_expendable(changes);
  make_capacity(changes);
  std::vector<Outcome> outcomes(changes.size());
  write_states(changes, &outcomes);
  write_journal(changes, &outcomes);
  const std::lock_guard lock(mutex_);
  for (size_t c = 0; c < changes.size(); ++c) apply(changes[c], &outcomes[c]);
  return outcomes;
}

// The space of expendable records that are removed is free for the other changes.
void StateStore::give_up_expendable(std::span<const Change> changes) {
  const std::lock_guard lock(mutex_);
  for (const Change& change : changes) {
    if (!change.removes || !is_expendable(change.key)) continue;
    if (const auto before = records_.find(change.key)) unname(before->states);
    records_.remove(change.key);
  }
}

// Nothing is removed after the first state is written, because nothing names it yet.
void StateStore::make_capacity(std::span<const Change> changes) {
  uint64_t wanted = 0;
  for (const Change& change : changes) {
    constexpr uint64_t kFrame = 64 << 10;
    wanted += change.text.size();
    if (!change.state) continue;
    const StateHeader& header = change.state->header;
    wanted += header.layout.bytes(header.position) + kFrame;
  }
  while (!files_.has_capacity(wanted) && tidy(Hurry::kFull)) continue;
}

void StateStore::write_states(std::span<const Change> changes, std::vector<Outcome>* outcomes) {
  bool durable = false;
  blobs_.begin_group();
  for (size_t c = 0; c < changes.size(); ++c) {
    if (!changes[c].state) continue;
    durable |= !changes[c].key.empty();
    try {
      write_state(changes[c]);
    } catch (const std::exception& error) {
      (*outcomes)[c].error = error.what();
    }
  }
  if (!durable) return;
  const std::map<uint64_t, std::string> unsure = blobs_.sync();
  for (size_t c = 0; c < changes.size() && !unsure.empty(); ++c) {
    if (!changes[c].state || !(*outcomes)[c].error.empty()) continue;
    const auto found = unsure.find(changes[c].state->header.id);
    if (found != unsure.end()) (*outcomes)[c].error = found->second;
  }
}

void StateStore::write_state(const Change& change) {
  const StateHeader& header = change.state->header;
  const StateFrame frame = frame_of(header, change.state->image);
  std::vector<std::string_view> parts = written_parts(change.state->image);
  parts.insert(parts.begin(), frame.front);
  parts.push_back(frame.back);
  blobs_.put(header.id, change.tenant, parts, !change.key.empty());
}

void StateStore::write_journal(std::span<const Change> changes, std::vector<Outcome>* outcomes) {
  std::string entries;
  for (size_t c = 0; c < changes.size(); ++c) {
    const Change& change = changes[c];
    if (change.key.empty() || !(*outcomes)[c].error.empty()) continue;
    if (change.state) append_entry(blobs_.location(change.state->header.id), &entries);
    if (change.removes) {
      append_entry(RecordRemoved{change.key}, &entries);
    } else {
      append_entry(RecordEntry{change.key, change.text, change.states}, &entries);
    }
  }
  if (entries.empty()) return;
  try {
    if (!log_.is_open() || log_.is_long()) begin_journal();
    files_.check_capacity(entries.size());
    log_.append(entries);
    if (const std::string why = lost(); !why.empty()) {
      log_.close();  // it names changes that are not committed
      throw std::runtime_error(why);
    }
  } catch (const std::exception& error) {
    for (size_t c = 0; c < changes.size(); ++c) {
      std::string& failed = (*outcomes)[c].error;
      if (!changes[c].key.empty() && failed.empty()) failed = error.what();
    }
  }
}

// Writes everything, each entry as a group: damage to one does not affect the others.
void StateStore::begin_journal() {
  uint64_t groups = 0;
  std::string all, entry;
  const auto end_group = [&] {
    all += journal_group(groups++, entry);
    entry.clear();
  };
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, refs] : refs_) {
      if (refs.records == 0) continue;
      append_entry(blobs_.location(id), &entry);
      end_group();
    }
    for (const std::string& record : records_) {
      entry = record;
      end_group();
    }
  }
  log_.begin(groups, all);
}

void StateStore::apply(const Change& change, Outcome* outcome) {
  if (!outcome->error.empty()) {
    if (change.state) blobs_.remove(change.state->header.id);
    return;
  }
  if (change.state) {
    const uint64_t id = change.state->header.id;
    Refs& refs = refs_[id];
    refs.durable = !change.key.empty();
    outcome->state = handle(id, refs);
  }
  if (change.key.empty()) return;
  for (const uint64_t id : change.states) ++refs_[id].records;
  if (const auto before = records_.find(change.key)) unname(before->states);
  if (change.removes) {
    records_.remove(change.key);
  } else {
    records_.put({change.key, change.text, change.states});
  }
}

void StateStore::unname(const std::vector<uint64_t>& states) {
  for (const uint64_t id : states) {
    if (--refs_[id].records == 0) released_.push_back(id);
  }
}

StoredPtr StateStore::handle(uint64_t id, Refs& refs) {
  auto state = std::make_shared<const StoredState>(*this, id, refs.durable);
  ++refs.handles;
  return state;
}

void StateStore::release(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto at = refs_.find(id);
  if (at != refs_.end() && --at->second.handles == 0) released_.push_back(id);
}

bool StateStore::tidy(Hurry hurry) {
  // A journal with an unknown end may name states that nothing else names.
  try {
    if (!lost().empty()) return false;
    if (!log_.is_open()) begin_journal();
  } catch (const std::exception&) {
    return false;
  }
  {
    const std::lock_guard lock(mutex_);
    for (const uint64_t id : std::exchange(released_, {})) {
      const auto at = refs_.find(id);
      if (at == refs_.end() || at->second.records > 0 || at->second.handles > 0) continue;
      refs_.erase(at);
      blobs_.remove(id);
    }
  }
  return blobs_.tidy(hurry == Hurry::kFull, [this](const std::vector<StateLocation>& moved) {
    std::string entries;
    for (const StateLocation& at : moved) append_entry(at, &entries);
    log_.append(entries);
  });
}

StateHeader StateStore::read(const StoredState& state, const StateHeader& wanted,
                             const StateRooms& rooms) {
  const auto blob = blobs_.get(state.id());
  StateHeader header = read_state(blob->bytes(), reader_of(*blob), wanted, rooms);
  check_is(state, header);
  return header;
}

StateHeader StateStore::read_answer(const StoredState& state, int32_t vocab) {
  const auto blob = blobs_.get(state.id());
  StateHeader header = recurve::read_answer(blob->bytes(), reader_of(*blob), vocab);
  check_is(state, header);
  return header;
}

StateHeader StateStore::read_header(const StoredState& state) {
  const auto blob = blobs_.get(state.id());
  StateHeader header = read_state_header(blob->bytes(), reader_of(*blob));
  check_is(state, header);
  return header;
}

void StateStore::check_is(const StoredState& state, const StateHeader& found) const {
  if (found.id == state.id()) return;
  throw StateError(EndReason::kStateLost,
                   fmt::format("its file holds state {} where {} must be: files were exchanged",
                               found.id, state.id()));
}

StateStore::Usage StateStore::usage() const {
  const std::lock_guard lock(mutex_);
  return {.bytes = files_.bytes(),
          .states = static_cast<int64_t>(refs_.size()),
          .records = static_cast<int64_t>(records_.size()),
          .syncs = files_.syncs(),
          .set_aside = files_.set_aside()};
}

}  // namespace recurve

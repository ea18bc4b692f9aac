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

// Whether full pages of the change's state are written as page groups.
bool writes_groups(const StateStore::Change& change) {
  return !change.key.empty() && change.state->header.layout.grows();
}
bool writes_any(const StateStore::Change& change) { return change.state || change.tokens; }
int64_t full_pages(const StateStore::Change& change) {
  return change.state->header.position / kPageTokens;
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
  const std::vector<Written> written = write_states(changes, &outcomes);
  write_journal(changes, written, &outcomes);
  const std::lock_guard lock(mutex_);
  for (size_t c = 0; c < changes.size(); ++c) apply(changes[c], written[c], &outcomes[c]);
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
    if (writes_any(change)) wanted += bytes_to_write(change) + kFrame;
  }
  while (!files_.has_capacity(wanted) && tidy(Hurry::kFull)) continue;
}

uint64_t StateStore::bytes_to_write(const Change& change) const {
  constexpr uint64_t kToken = 8;
  const uint64_t tokens = change.tokens ? kToken * change.tokens->tokens.size() : 0;
  if (!change.state) return tokens;
  const StateHeader& header = change.state->header;
  const std::lock_guard lock(mutex_);
  const auto base = base_of(change);
  const auto shared = static_cast<size_t>(base == refs_.end() ? 0 : base->second.pages);
  return tokens + header.layout.bytes(header.position) - shared * header.layout.page_bytes();
}

// The page group with the last of the pages that need not be written; end(): all need to be.
StateStore::RefsById::const_iterator StateStore::base_of(const Change& change) const {
  const StoredPtr& before = change.state->continues;
  if (!writes_groups(change) || before == nullptr || !before->durable()) return refs_.end();
  auto group = refs_.find(refs_.at(before->id()).base);
  while (group != refs_.end() && group->second.pages > full_pages(change)) {
    group = refs_.find(group->second.base);
  }
  return group;
}

std::vector<StateStore::Written> StateStore::write_states(std::span<const Change> changes,
                                                          std::vector<Outcome>* outcomes) {
  std::vector<Written> written(changes.size());
  bool durable = false;
  blobs_.begin_group();
  for (size_t c = 0; c < changes.size(); ++c) {
    const Change& change = changes[c];
    if (!writes_any(change)) continue;
    durable |= !change.key.empty();
    try {
      if (change.state) write_state(change, &written[c]);
      if (const auto& part = change.tokens) {
        const std::string all = written_tokens(part->id, part->first, part->tokens);
        blobs_.put(part->id, change.tenant, std::vector<std::string_view>{all}, /*lasting=*/true);
      }
    } catch (const std::exception& error) {
      (*outcomes)[c].error = error.what();
    }
  }
  if (!durable) return written;
  const std::map<uint64_t, std::string> unsure = blobs_.sync();
  for (size_t c = 0; c < changes.size() && !unsure.empty(); ++c) {
    if (!writes_any(changes[c]) || !(*outcomes)[c].error.empty()) continue;
    for (const auto& [id, refs] : refs_of(changes[c], written[c])) {
      const auto found = unsure.find(id);
      if (found != unsure.end()) (*outcomes)[c].error = found->second;
    }
  }
  return written;
}

void StateStore::write_state(const Change& change, Written* written) {
  const StateImage& image = change.state->image;
  StateHeader header = change.state->header;
  {
    const std::lock_guard lock(mutex_);
    if (const auto base = base_of(change); base != refs_.end()) {
      header.base = {base->first, base->second.checksum};
      written->base = base->first;
      written->pages = base->second.pages;
    }
  }
  if (writes_groups(change) && written->pages < full_pages(change)) {
    PageGroup group = page_group_of(header, image, written->pages, new_id());
    group.pages.insert(group.pages.begin(), group.front);
    blobs_.put(group.ref.id, change.tenant, group.pages, /*lasting=*/true);
    header.base = written->group = group.ref;
    written->pages = full_pages(change);
  }
  const StateFrame frame = frame_of(header, image);
  std::vector<std::string_view> parts = written_parts(header, image);
  parts.insert(parts.begin(), frame.front);
  parts.push_back(frame.back);
  blobs_.put(header.id, change.tenant, parts, !change.key.empty());
}

void StateStore::write_journal(std::span<const Change> changes, std::span<const Written> written,
                               std::vector<Outcome>* outcomes) {
  std::string entries;
  for (size_t c = 0; c < changes.size(); ++c) {
    const Change& change = changes[c];
    if (change.key.empty() || !(*outcomes)[c].error.empty()) continue;
    for (const auto& [id, refs] : refs_of(change, written[c])) {
      append_location(id, refs, &entries);
    }
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
      if (!refs.used() || !refs.durable) continue;
      append_location(id, refs, &entry);
      end_group();
    }
    for (const std::string& record : records_) {
      entry = record;
      end_group();
    }
  }
  log_.begin(groups, all);
}

std::vector<std::pair<uint64_t, StateStore::Refs>> StateStore::refs_of(const Change& change,
                                                                       const Written& written) {
  std::vector<std::pair<uint64_t, Refs>> all;
  const auto& [group, pages, base] = written;
  if (group.id > 0) {
    all.push_back(
        {group.id, {.durable = true, .base = base, .pages = pages, .checksum = group.checksum}});
  }
  if (change.state) {
    all.push_back({change.state->header.id,
                   {.durable = !change.key.empty(), .base = group.id > 0 ? group.id : base}});
  }
  if (change.tokens) all.push_back({change.tokens->id, {.durable = true}});
  return all;
}

void StateStore::append_location(uint64_t id, const Refs& refs, std::string* entries) const {
  const StateLocation at = blobs_.location(id);
  if (refs.base == 0 && refs.pages == 0) return append_entry(at, entries);
  append_entry(PagedLocation{at, refs.base, static_cast<uint64_t>(refs.pages), refs.checksum},
               entries);
}

void StateStore::apply(const Change& change, const Written& written, Outcome* outcome) {
  if (!outcome->error.empty()) {
    for (const auto& [id, refs] : refs_of(change, written)) blobs_.remove(id);
    return;
  }
  for (const auto& [id, refs] : refs_of(change, written)) {
    refs_[id] = refs;
    if (refs.base > 0) ++refs_[refs.base].states;
  }
  const auto handle_of = [this](uint64_t id) { return handle(id, refs_[id]); };
  if (change.state) outcome->state = handle_of(change.state->header.id);
  if (change.tokens) outcome->tokens = handle_of(change.tokens->id);
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
  remove_released();
  return blobs_.tidy(hurry == Hurry::kFull, [this](const std::vector<StateLocation>& moved) {
    std::string entries;
    for (const StateLocation& at : moved) append_entry(at, &entries);
    log_.append(entries);
  });
}

// Two nodes, with their shares of the buckets.
int64_t StateStore::page_group_memory() {
  constexpr int64_t kHeap = 16, kPointers = 3 * sizeof(void*);
  return static_cast<int64_t>(sizeof(RefsById::value_type)) + BlobStore::blob_memory() +
         2 * (kHeap + kPointers);
}

// Removes the released states that nothing else references, and page groups that only they needed.
void StateStore::remove_released() {
  const std::lock_guard lock(mutex_);
  for (uint64_t id : std::exchange(released_, {})) {
    for (auto at = refs_.find(id); at != refs_.end(); at = refs_.find(id)) {
      if (at->second.used() || at->second.handles > 0) break;
      const uint64_t base = at->second.base;
      refs_.erase(at);
      blobs_.remove(id);
      const auto before = refs_.find(base);
      if (before != refs_.end()) --before->second.states;
      id = base;
    }
  }
}

StateStore::Pages StateStore::pages_before(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto group = refs_.find(refs_.at(id).base);
  if (group == refs_.end()) return {};
  const StateLocation at = blobs_.location(group->first);
  return {group->first, group->second.pages, at.segment == 0 ? at.bytes : 2 * at.bytes};
}

bool StateStore::is_gone(const StoredState& state) const {
  if (!blobs_.any_gone()) return false;
  const std::lock_guard lock(mutex_);
  return any_gone(state.id());
}

// The state or page group, or one of the groups before it.
bool StateStore::any_gone(uint64_t id) const {
  for (auto at = refs_.find(id); at != refs_.end(); at = refs_.find(id)) {
    if (blobs_.is_gone(id)) return true;
    id = at->second.base;
  }
  return false;
}

StateHeader StateStore::read(const StoredState& state, const StateHeader& wanted,
                             const StateRooms& rooms) {
  const auto blob = blobs_.get(state.id());
  const auto base = [this](const PageGroupRef& of, const StateRooms& pages) {
    read_pages(of, pages);
  };
  StateHeader header = read_state(blob->bytes(), reader_of(*blob), wanted, rooms, base);
  check_is(state, header);
  return header;
}

// From the last page group to the first: each says which one is before it.
void StateStore::read_pages(const PageGroupRef& base, const StateRooms& pages) {
  auto remaining = static_cast<int64_t>(pages.size());
  PageGroupRef at = base;
  while (remaining > 0) {
    const PageGroupRef group = at;
    const auto set_group_aside = [&] {
      try {
        blobs_.set_aside(group.id);
      } catch (const std::exception&) {  // the file stays where it is
      }
    };
    try {
      const auto blob = blobs_.get(group.id);
      at = read_page_group(blob->bytes(), reader_of(*blob), group, pages, &remaining);
    } catch (const StateError& error) {
      if (error.reason() == EndReason::kStateLost) set_group_aside();
      throw;
    } catch (const FileDamaged&) {
      set_group_aside();
      throw;
    }
  }
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

std::vector<uint32_t> StateStore::read_tokens(const StoredTokens& part, int32_t vocab) {
  const auto blob = blobs_.get(part.stored->id());
  StateHeader found = recurve::read_tokens(blob->bytes(), reader_of(*blob), vocab);
  check_is(*part.stored, found);
  if (found.position == part.first &&
      static_cast<int64_t>(found.tokens.size()) == part.end - part.first) {
    return std::move(found.tokens);
  }
  throw StateError(
      EndReason::kStateLost,
      fmt::format("its file holds {} tokens from {} on where those in [{}, {}) must be",
                  found.tokens.size(), found.position, part.first, part.end));
}

void StateStore::check_is(const StoredState& state, const StateHeader& found) const {
  if (found.id == state.id()) return;
  throw StateError(EndReason::kStateLost,
                   fmt::format("its file has state {}, expected state {}: restore the file",
                               found.id, state.id()));
}

StateStore::Usage StateStore::usage() const {
  const std::lock_guard lock(mutex_);
  return {.bytes = files_.bytes(),
          .written = files_.written(),
          .states = static_cast<int64_t>(refs_.size()),
          .records = static_cast<int64_t>(records_.size()),
          .syncs = files_.syncs(),
          .set_aside = files_.set_aside()};
}

}  // namespace recurve

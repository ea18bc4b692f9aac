// A store of states: how they are read, while others are committed.
#include <fmt/format.h>

#include <cerrno>
#include <system_error>

#include "server/storage/file_names.h"
#include "server/storage/state_store.h"

namespace recurve {
namespace {

[[noreturn]] void refuse_gone() {
  throw StateError(EndReason::kStateLost, "its file is gone, or has been cut off");
}

}  // namespace

std::shared_ptr<const FileSystem::Reader> StateStore::segment_reader(uint64_t number) {
  Segment& segment = segments_.at(number);
  if (segment.reader == nullptr) segment.reader = files_->open(file_name(kSegmentFile, number));
  return segment.reader;
}

// A segment is opened before it can be removed; a file of its own is there as long as its handle.
std::shared_ptr<const FileSystem::Reader> StateStore::reader_of(const StoredState& state,
                                                                Place* place) {
  try {
    {
      const std::lock_guard lock(mutex_);
      *place = places_.at(state.id());
      if (place->missing) refuse_gone();
      if (place->segment > 0) return segment_reader(place->segment);
    }
    return files_->open(file_name(kStateFile, state.id()));
  } catch (const std::system_error& error) {
    if (error.code().value() == ENOENT) refuse_gone();
    throw;
  }
}

StateHeader StateStore::read(const StoredState& state, const StateHeader& wanted,
                             const StateRooms& rooms) {
  Place place;
  const auto reader = reader_of(state, &place);
  const auto read_at = [&](uint64_t offset, std::span<std::byte> to) {
    reader->read(place.offset + offset, to);
  };
  StateHeader header = read_state(place.bytes, read_at, wanted, rooms);
  check_is(state, header);
  return header;
}

StateHeader StateStore::read_answer(const StoredState& state, int32_t vocab) {
  Place place;
  const auto reader = reader_of(state, &place);
  StateHeader header = recurve::read_answer(
      place.bytes, [&](uint64_t offset, auto to) { reader->read(place.offset + offset, to); },
      vocab);
  check_is(state, header);
  return header;
}

StateHeader StateStore::read_header(const StoredState& state) {
  Place place;
  const auto reader = reader_of(state, &place);
  StateHeader header = read_state_header(
      place.bytes, [&](uint64_t offset, auto to) { reader->read(place.offset + offset, to); });
  check_is(state, header);
  return header;
}

void StateStore::check_is(const StoredState& state, const StateHeader& found) const {
  if (found.id == state.id()) return;
  throw StateError(EndReason::kStateLost,
                   fmt::format("its file holds state {} where {} must be: files were exchanged",
                               found.id, state.id()));
}

StateStore::Place StateStore::place_of(const StoredState& state) const {
  const std::lock_guard lock(mutex_);
  return places_.at(state.id());
}

uint64_t StateStore::bytes_of(const StoredState& state) const { return place_of(state).bytes; }

void StateStore::set_aside(const StoredState& state) {
  const std::lock_guard once(setting_aside_);
  const std::string name = file_name(kStateFile, state.id());
  Place place = place_of(state);
  if (place.set_aside) return;
  if (place.segment == 0) {
    set_aside(name);
  } else {
    const auto reader = reader_of(state, &place);
    files_->create(std::string(kSetAside) + name)->append_from(*reader, place.offset, place.bytes);
  }
  const std::lock_guard lock(mutex_);
  if (place.segment > 0) ++usage_.set_aside;
  Place& set = places_.at(state.id());
  set.missing = set.set_aside = true;
}

StateStore::Usage StateStore::usage() const {
  const std::lock_guard lock(mutex_);
  Usage usage = usage_;
  usage.states = static_cast<int64_t>(places_.size());
  usage.records = static_cast<int64_t>(records_.size());
  return usage;
}

}  // namespace recurve

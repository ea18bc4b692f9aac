#include "server/storage/journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>

#include "server/state/state_form.h"

namespace recurve {
namespace {

constexpr std::string_view kMark = "RJNL";
constexpr uint32_t kVersion = 4;

// The size of the file's header and of a group's frame in each version.
struct Form {
  size_t beginning, frame;
};
constexpr Form form_of(uint32_t version) { return version < 3 ? Form{20, 16} : Form{28, 24}; }

template <typename T>
void put(T value, std::string* to) {
  to->append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put_text(std::string_view text, std::string* to) {
  put(static_cast<uint32_t>(text.size()), to);
  to->append(text);
}

uint64_t checksum_of_group(uint64_t number, std::string_view entries) {
  std::string all;
  put(number, &all);
  return checksum_of(all.append(entries));
}

// Reads values from the front; none once there are too few bytes.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : bytes_(bytes) {}
  template <typename T>
  T take() {
    T value{};
    if (enough(sizeof value)) {
      std::memcpy(&value, bytes_.data(), sizeof value);
      bytes_.remove_prefix(sizeof value);
    }
    return value;
  }
  std::string text() {
    const auto length = take<uint32_t>();
    if (!enough(length)) return {};
    const std::string text(bytes_.substr(0, length));
    bytes_.remove_prefix(length);
    return text;
  }
  bool whole() const { return !short_ && bytes_.empty(); }
  bool has_more() const { return !short_ && !bytes_.empty(); }
  bool enough(size_t bytes) {
    short_ |= bytes_.size() < bytes;
    return !short_;
  }

 private:
  std::string_view bytes_;
  bool short_ = false;
};

std::string fields_of(const StateLocation& at) {
  std::string to(1, 1);
  for (const uint64_t value : {at.id, at.segment, at.offset, at.bytes}) put(value, &to);
  return to;
}
std::string fields_of(const PagedLocation& blob) {
  std::string to = fields_of(blob.at);
  to[0] = 5;
  for (const uint64_t value : {blob.base, blob.pages, blob.checksum}) put(value, &to);
  return to;
}
std::string fields_of(const RecordEntry& record) {
  std::string to(1, record.in_doubt ? 4 : 2);
  put_text(record.key, &to);
  put_text(record.text, &to);
  put(static_cast<uint32_t>(record.states.size()), &to);
  for (const uint64_t id : record.states) put(id, &to);
  return to;
}
std::string fields_of(const RecordRemoved& removed) {
  std::string to(1, 3);
  put_text(removed.key, &to);
  return to;
}

StateLocation take_location(Fields* fields) {
  StateLocation at;
  at.id = fields->take<uint64_t>();
  at.segment = fields->take<uint64_t>();
  at.offset = fields->take<uint64_t>();
  at.bytes = fields->take<uint64_t>();
  return at;
}

// Reads an entry from the front. The fields show whether there were too few bytes.
std::optional<JournalEntry> take_entry(Fields* fields) {
  JournalEntry entry;
  const auto kind = fields->take<uint8_t>();
  switch (kind) {
    case 1:
      entry = take_location(fields);
      break;
    case 5: {
      PagedLocation& blob = entry.emplace<PagedLocation>();
      blob.at = take_location(fields);
      blob.base = fields->take<uint64_t>();
      blob.pages = fields->take<uint64_t>();
      blob.checksum = fields->take<uint64_t>();
      break;
    }
    case 2:
    case 4: {
      RecordEntry& record = entry.emplace<RecordEntry>();
      record.in_doubt = kind == 4;
      record.key = fields->text();
      record.text = fields->text();
      const auto states = fields->take<uint32_t>();
      if (!fields->enough(size_t{8} * states)) return std::nullopt;
      for (uint32_t s = 0; s < states; ++s) record.states.push_back(fields->take<uint64_t>());
      break;
    }
    case 3:
      entry.emplace<RecordRemoved>().key = fields->text();
      break;
    default:
      return std::nullopt;
  }
  return entry;
}

// Reads the file's header. An incomplete header is treated as one of this version.
struct Beginning {
  uint32_t version = kVersion;
  uint64_t snapshot_groups = 0;
  bool whole = false;
};

Beginning beginning_of(std::string_view journal) {
  Beginning found;
  Fields fields(journal);
  fields.take<uint64_t>();
  const auto version = fields.take<uint32_t>();
  const auto snapshot_groups = version < 3 ? 0 : fields.take<uint64_t>();
  const size_t summed = form_of(version).beginning - sizeof(uint64_t);
  const auto checksum = fields.take<uint64_t>();
  found.whole = journal.starts_with(kJournalMagic) && fields.enough(0) &&
                checksum == checksum_of(journal.substr(0, summed));
  if (!found.whole) return found;
  if (version > kVersion) {
    throw std::runtime_error(
        fmt::format("its journal has version {}, this server reads up to {}: use a newer server, "
                    "or another folder",
                    version, kVersion));
  }
  return {version, snapshot_groups, true};
}

bool take_entries(std::string_view all, std::vector<JournalEntry>* entries) {
  Fields fields(all);
  const size_t before = entries->size();
  while (fields.has_more()) {
    auto entry = take_entry(&fields);
    if (!entry) break;
    entries->push_back(std::move(*entry));
  }
  if (fields.whole()) return true;
  entries->resize(before);
  return false;
}

// Reads the group at the front of the bytes; false if there is no complete one. A group of a
// version without numbers gets `next`.
bool take_group(std::string_view* bytes, uint32_t version, uint64_t next, JournalContents* to) {
  const size_t frame = form_of(version).frame;
  if (bytes->size() < frame || !bytes->starts_with(kMark)) return false;
  Fields fields(bytes->substr(kMark.size(), frame - kMark.size()));
  const auto length = fields.take<uint32_t>();
  const uint64_t number = version < 3 ? next : fields.take<uint64_t>();
  const auto checksum = fields.take<uint64_t>();
  if (bytes->size() - frame < length || number < next) return false;
  const std::string_view all = bytes->substr(frame, length);
  if (checksum != (version < 3 ? checksum_of(all) : checksum_of_group(number, all))) return false;
  if (!take_entries(all, &to->entries)) return false;
  to->groups.push_back({number, to->entries.size()});
  bytes->remove_prefix(frame + length);
  return true;
}

JournalContents parse_groups(std::string_view left, uint32_t version) {
  JournalContents contents;
  const auto next = [&] { return contents.groups.empty() ? 0 : contents.groups.back().number + 1; };
  while (!left.empty()) {
    if (take_group(&left, version, next(), &contents)) continue;
    // Incomplete: cut off, unless a group follows. Without numbers, a group may be missing before
    // that.
    const uint64_t after = version < 3 ? next() + 1 : next();
    bool follows = false;
    while (!follows && !left.empty()) {
      left.remove_prefix(1);
      left.remove_prefix(std::min(left.find(kMark), left.size()));
      follows = take_group(&left, version, after, &contents);
    }
    contents.damaged |= follows;
    contents.has_tail = !follows;
  }
  return contents;
}

}  // namespace

std::string journal_beginning(uint64_t snapshot_groups) {
  std::string beginning(kJournalMagic);
  put(kVersion, &beginning);
  put(snapshot_groups, &beginning);
  put(checksum_of(beginning), &beginning);
  return beginning;
}

void append_entry(const JournalEntry& entry, std::string* entries) {
  *entries += std::visit([](const auto& of) { return fields_of(of); }, entry);
}

RecordEntry record_of(std::string_view entry) {
  Fields fields(entry);
  return std::get<RecordEntry>(take_entry(&fields).value());
}

std::string_view key_of_record(std::string_view entry) {
  uint32_t length = 0;
  std::memcpy(&length, entry.data() + 1, sizeof length);
  return entry.substr(1 + sizeof length, length);
}

std::string journal_group(uint64_t number, std::string_view entries) {
  std::string group(kMark);
  put(static_cast<uint32_t>(entries.size()), &group);
  put(number, &group);
  put(checksum_of_group(number, entries), &group);
  return group.append(entries);
}

JournalContents parse_journal(std::string_view journal) {
  const Beginning beginning = beginning_of(journal);
  const size_t bytes = form_of(beginning.version).beginning;
  const std::string_view groups = journal.substr(std::min(bytes, journal.size()));
  JournalContents contents = parse_groups(groups, beginning.version);
  // Its version is unknown then.
  if (!beginning.whole && contents.groups.empty()) contents = parse_groups(journal, 2);
  contents.snapshot_groups = beginning.snapshot_groups;
  contents.damaged |= !beginning.whole;
  return contents;
}

JournalContents merge_journals(JournalContents journal, JournalContents copy) {
  JournalContents merged{.snapshot_groups = std::max(journal.snapshot_groups, copy.snapshot_groups),
                         .damaged = journal.damaged,
                         .has_tail = journal.has_tail};
  size_t of_journal = 0, of_copy = 0;
  const auto take = [&](JournalContents& from, size_t* at, bool wanted) {
    const size_t begin = *at == 0 ? 0 : from.groups[*at - 1].end;
    const JournalContents::Group group = from.groups[(*at)++];
    if (!wanted) return;
    for (size_t e = begin; e < group.end; ++e) merged.entries.push_back(std::move(from.entries[e]));
    merged.groups.push_back({group.number, merged.entries.size()});
  };
  while (of_journal < journal.groups.size() || of_copy < copy.groups.size()) {
    const bool journal_ends = of_journal == journal.groups.size();
    const bool copy_ends = of_copy == copy.groups.size();
    const uint64_t ours = journal_ends ? UINT64_MAX : journal.groups[of_journal].number;
    const uint64_t theirs = copy_ends ? UINT64_MAX : copy.groups[of_copy].number;
    if (ours <= theirs) take(journal, &of_journal, true);
    if (theirs <= ours) take(copy, &of_copy, theirs < ours);
  }
  return merged;
}

JournalGaps gaps_in(const JournalContents& contents) {
  JournalGaps gaps;
  uint64_t next = 0;
  size_t before = 0;
  for (const auto& [number, end] : contents.groups) {
    if (number > next) gaps.any = true;
    if (number > next && number > contents.snapshot_groups) gaps.whole_from = before;
    next = number + 1;
    before = end;
  }
  gaps.any |= next < contents.snapshot_groups;
  return gaps;
}

}  // namespace recurve

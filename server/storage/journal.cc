#include "server/storage/journal.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <stdexcept>

#include "server/state/state_form.h"

namespace recurve {
namespace {

constexpr std::string_view kMark = "RJNL";
constexpr uint32_t kVersion = 2;
constexpr size_t kBeginning = 20, kFrame = 16;

template <typename T>
void put(T value, std::string* to) {
  to->append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put_text(std::string_view text, std::string* to) {
  put(static_cast<uint32_t>(text.size()), to);
  to->append(text);
}

// Takes values from the front; none once there is too little.
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
std::string fields_of(const RecordEntry& record) {
  std::string to(1, 2);
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

// Takes an entry from the front; what there is too little for is seen in the fields.
std::optional<JournalEntry> take_entry(Fields* fields) {
  JournalEntry entry;
  switch (fields->take<uint8_t>()) {
    case 1: {
      StateLocation& at = entry.emplace<StateLocation>();
      at.id = fields->take<uint64_t>();
      at.segment = fields->take<uint64_t>();
      at.offset = fields->take<uint64_t>();
      at.bytes = fields->take<uint64_t>();
      break;
    }
    case 2: {
      RecordEntry& record = entry.emplace<RecordEntry>();
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

void check_beginning(std::string_view journal, bool* damaged) {
  Fields fields(journal.substr(0, kBeginning));
  const bool ours = journal.starts_with(kJournalMagic);
  fields.take<uint64_t>();
  const auto version = fields.take<uint32_t>();
  const bool whole =
      fields.take<uint64_t>() == checksum_of(journal.substr(0, 12)) && fields.whole();
  if (ours && whole && version > kVersion) {
    throw std::runtime_error(
        fmt::format("its journal is of version {}, and this server reads up to {}: "
                    "use a newer server, or another folder",
                    version, kVersion));
  }
  *damaged |= !ours || !whole;
}

// Takes the group that the bytes begin with, and adds its entries; false if they do not begin with
// a whole one.
bool take_group(std::string_view* bytes, std::vector<JournalEntry>* entries) {
  if (bytes->size() < kFrame || !bytes->starts_with(kMark)) return false;
  Fields frame(bytes->substr(kMark.size(), kFrame - kMark.size()));
  const auto length = frame.take<uint32_t>();
  const auto checksum = frame.take<uint64_t>();
  if (bytes->size() - kFrame < length) return false;
  const std::string_view all = bytes->substr(kFrame, length);
  if (checksum_of(all) != checksum) return false;
  Fields fields(all);
  const size_t before = entries->size();
  while (fields.has_more()) {
    auto entry = take_entry(&fields);
    if (!entry) break;
    entries->push_back(std::move(*entry));
  }
  if (!fields.whole()) {
    entries->resize(before);
    return false;
  }
  bytes->remove_prefix(kFrame + length);
  return true;
}

}  // namespace

std::string journal_beginning() {
  std::string beginning(kJournalMagic);
  put(kVersion, &beginning);
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

std::string journal_group(std::string_view entries) {
  std::string group(kMark);
  put(static_cast<uint32_t>(entries.size()), &group);
  put(checksum_of(entries), &group);
  return group.append(entries);
}

JournalContents parse_journal(std::string_view journal) {
  JournalContents contents;
  check_beginning(journal, &contents.damaged);
  std::string_view left = journal.substr(std::min(kBeginning, journal.size()));
  while (!left.empty()) {
    if (take_group(&left, &contents.entries)) continue;
    // Not whole: cut off, unless a group follows.
    bool follows = false;
    while (!follows && !left.empty()) {
      left.remove_prefix(1);
      left.remove_prefix(std::min(left.find(kMark), left.size()));
      follows = take_group(&left, &contents.entries);
    }
    if (!follows) break;
    contents.damaged = true;
  }
  return contents;
}

}  // namespace recurve

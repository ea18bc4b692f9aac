#include "server/storage/journal.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <stdexcept>

#include "server/state/state_form.h"

namespace recurve {
namespace {

constexpr std::string_view kMagic = "RCRVJRNL", kMark = "RJNL";
constexpr uint32_t kVersion = 1;
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

std::optional<JournalEntry> entry_of(std::string_view bytes) {
  Fields fields(bytes);
  JournalEntry entry;
  switch (fields.take<uint8_t>()) {
    case 1: {
      StateLocation& at = entry.emplace<StateLocation>();
      at.id = fields.take<uint64_t>();
      at.segment = fields.take<uint64_t>();
      at.offset = fields.take<uint64_t>();
      at.bytes = fields.take<uint64_t>();
      break;
    }
    case 2: {
      RecordEntry& record = entry.emplace<RecordEntry>();
      record.key = fields.text();
      record.text = fields.text();
      const auto states = fields.take<uint32_t>();
      if (!fields.enough(size_t{8} * states)) return std::nullopt;
      for (uint32_t s = 0; s < states; ++s) record.states.push_back(fields.take<uint64_t>());
      break;
    }
    case 3:
      entry.emplace<RecordRemoved>().key = fields.text();
      break;
    default:
      return std::nullopt;
  }
  return fields.whole() ? std::optional(std::move(entry)) : std::nullopt;
}

void check_beginning(std::string_view journal, bool* damaged) {
  Fields fields(journal.substr(0, kBeginning));
  const bool ours = journal.starts_with(kMagic);
  fields.take<uint64_t>();
  const auto version = fields.take<uint32_t>();
  const bool whole =
      fields.take<uint64_t>() == checksum_of(journal.substr(0, 12)) && fields.whole();
  if (ours && whole && version != kVersion) {
    throw std::runtime_error(
        fmt::format("its journal is of version {}, and this server reads {}: "
                    "use a newer server, or another folder",
                    version, kVersion));
  }
  *damaged |= !ours || !whole;
}

// Takes the entry that the bytes begin with; nothing if they do not begin with a whole one.
std::optional<JournalEntry> take_entry(std::string_view* bytes) {
  if (bytes->size() < kFrame || !bytes->starts_with(kMark)) return std::nullopt;
  Fields frame(bytes->substr(kMark.size(), kFrame - kMark.size()));
  const auto length = frame.take<uint32_t>();
  const auto checksum = frame.take<uint64_t>();
  if (bytes->size() - kFrame < length) return std::nullopt;
  const std::string_view fields = bytes->substr(kFrame, length);
  if (checksum_of(fields) != checksum) return std::nullopt;
  auto entry = entry_of(fields);
  if (entry) bytes->remove_prefix(kFrame + length);
  return entry;
}

}  // namespace

std::string journal_beginning() {
  std::string beginning(kMagic);
  put(kVersion, &beginning);
  put(checksum_of(beginning), &beginning);
  return beginning;
}

void append_entry(const JournalEntry& entry, std::string* journal) {
  const std::string fields = std::visit([](const auto& of) { return fields_of(of); }, entry);
  journal->append(kMark);
  put(static_cast<uint32_t>(fields.size()), journal);
  put(checksum_of(fields), journal);
  journal->append(fields);
}

JournalContents parse_journal(std::string_view journal) {
  JournalContents contents;
  check_beginning(journal, &contents.damaged);
  std::string_view left = journal.substr(std::min(kBeginning, journal.size()));
  while (!left.empty()) {
    if (auto entry = take_entry(&left)) {
      contents.entries.push_back(std::move(*entry));
      continue;
    }
    // Not whole: cut off, unless an entry follows.
    std::optional<JournalEntry> next;
    while (!next && !left.empty()) {
      left.remove_prefix(1);
      left.remove_prefix(std::min(left.find(kMark), left.size()));
      next = take_entry(&left);
    }
    if (!next) break;
    contents.damaged = true;
    contents.entries.push_back(std::move(*next));
  }
  return contents;
}

}  // namespace recurve

// Any bytes as a written state: refused in one sentence, or a header that says what they are.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/check.h"
#include "server/state/state_form.h"
#include "server/storage/journal.h"

namespace {

// As an attacker would: with a valid checksum of the header.
std::string with_checksum(std::string bytes) {
  uint32_t header = 0;
  if (bytes.size() < 32) return bytes;
  std::memcpy(&header, bytes.data() + 12, sizeof header);
  if (header > bytes.size() - 32) return bytes;
  const uint64_t sum = recurve::checksum_of(bytes.substr(0, 24) + bytes.substr(32, header));
  std::memcpy(bytes.data() + 24, &sum, sizeof sum);
  return bytes;
}

// A state whose full pages are elsewhere, which may be as many as no memory has.
void read_with_base(uint64_t bytes, const recurve::ReadAt& read_at,
                    const recurve::StateHeader& wanted) {
  const size_t page = wanted.layout.page_bytes();
  if (page > 1 << 16 || wanted.position > 1 << 16) return;
  const recurve::NewImage made = recurve::make_image(wanted.layout, wanted.position);
  bool asked = false;
  const auto read_base = [&](const recurve::PageGroupRef& base, const recurve::StateRooms& pages) {
    CHECK(base.id > 0 && pages.size() == static_cast<size_t>(wanted.position / 64));
    asked = true;
    for (const auto room : pages) {
      CHECK(room.size() == page);
      std::memset(room.data(), 0, room.size());
    }
  };
  recurve::read_state(bytes, read_at, wanted, made.rooms, read_base);
  CHECK(asked);
}

// As a page group with the first pages, of that many bytes each.
void read_group(const std::string& bytes, const recurve::ReadAt& read_at, size_t page_bytes) {
  recurve::PageGroupRef wanted{.id = recurve::read_id(bytes.size(), read_at)};
  std::memcpy(&wanted.checksum, bytes.data() + 24, sizeof wanted.checksum);
  for (const int64_t pages : {1, 2, 4}) {
    std::vector<std::byte> memory(static_cast<size_t>(pages) * page_bytes);
    recurve::StateRooms rooms;
    for (int64_t p = 0; p < pages; ++p) {
      rooms.push_back(std::span(memory).subspan(static_cast<size_t>(p) * page_bytes, page_bytes));
    }
    int64_t end = pages;
    try {
      const recurve::PageGroupRef base =
          recurve::read_page_group(bytes.size(), read_at, wanted, rooms, &end);
      CHECK(end >= 0 && end < pages && (base.id == 0) == (end == 0));
    } catch (const recurve::StateError&) {
    }
  }
}

// As tokens of a text.
void read_tokens(const std::string& bytes, const recurve::ReadAt& read_at) {
  constexpr int32_t kVocab = 1000;
  const recurve::StateHeader found = recurve::read_tokens(bytes.size(), read_at, kVocab);
  CHECK(found.position >= 0 && !found.tokens.empty() && found.tokens.size() <= bytes.size());
  CHECK(found.tokens.size() <= recurve::kMostTokens);
  for (const uint32_t token : found.tokens) CHECK(token / 4 < kVocab);
}

void read(const std::string& bytes) {
  const auto read_at = [&](uint64_t offset, std::span<std::byte> to) {
    CHECK(offset <= bytes.size() && to.size() <= bytes.size() - offset);
    std::memcpy(to.data(), bytes.data() + offset, to.size());
  };
  try {
    for (const size_t page_bytes : {512, 640, 1024}) read_group(bytes, read_at, page_bytes);
  } catch (const recurve::StateError&) {
  }
  try {
    read_tokens(bytes, read_at);
  } catch (const recurve::StateError&) {
  }
  try {
    const recurve::StateHeader wanted = recurve::read_state_header(bytes.size(), read_at);
    if (wanted.base.id > 0) return read_with_base(bytes.size(), read_at, wanted);
    CHECK(wanted.layout.bytes(wanted.position) <= bytes.size());
    recurve::read_answer(bytes.size(), read_at, INT32_MAX);
    const recurve::NewImage made = recurve::make_image(wanted.layout, wanted.position);
    const recurve::StateHeader header =
        recurve::read_state(bytes.size(), read_at, wanted, made.rooms);
    CHECK(header.position >= 0);
    CHECK(header.tokens.empty() || header.tokens.size() == static_cast<size_t>(header.position));
    // A reader whose arrays are all in one piece.
    recurve::StateHeader joined = wanted;
    for (recurve::StateArray& array : joined.layout.arrays) array.piece = "all";
    const recurve::NewImage other = recurve::make_image(joined.layout, wanted.position);
    recurve::read_state(bytes.size(), read_at, joined, other.rooms);
  } catch (const recurve::StateError& error) {
    const std::string_view sentence = error.what();
    CHECK(!sentence.empty() && sentence.size() < 2000 && sentence.find('\n') == sentence.npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  read(bytes);
  read(with_checksum(bytes));
  try {
    recurve::parse_journal(bytes);
  } catch (const std::runtime_error& error) {
    CHECK(std::string_view(error.what()).find("version") != std::string_view::npos);
  }
  return 0;
}

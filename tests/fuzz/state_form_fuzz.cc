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

void read(const std::string& bytes) {
  const auto read_at = [&](uint64_t offset, std::span<std::byte> to) {
    CHECK(offset <= bytes.size() && to.size() <= bytes.size() - offset);
    std::memcpy(to.data(), bytes.data() + offset, to.size());
  };
  try {
    const recurve::StateHeader wanted = recurve::read_state_header(bytes.size(), read_at);
    CHECK(wanted.layout.bytes(wanted.position) <= bytes.size());
    recurve::read_answer(bytes.size(), read_at, INT32_MAX);
    const recurve::NewImage made = recurve::make_image(wanted.layout, wanted.position);
    const recurve::StateHeader header =
        recurve::read_state(bytes.size(), read_at, wanted, made.rooms);
    CHECK(header.position >= 0);
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

#include "server/storage/file_system.h"

#include <algorithm>

namespace recurve {

// In blocks, because a disk loses whole blocks.
void FileSystem::Reader::read_what_is_whole(uint64_t offset, std::span<std::byte> to) const {
  constexpr size_t kBlock = 4096;
  while (!to.empty()) {
    const auto block = to.first(std::min<size_t>(to.size(), kBlock - offset % kBlock));
    try {
      read(offset, block);
    } catch (const std::system_error&) {
      std::ranges::fill(block, std::byte{});
    }
    offset += block.size();
    to = to.subspan(block.size());
  }
}

void FileSystem::Writer::append_of(std::string_view /*tenant*/,
                                   std::span<const std::string_view> parts) {
  for (const std::string_view part : parts) append(part);
}

void FileSystem::Writer::append_from(const Reader& from, uint64_t offset, uint64_t bytes) {
  std::string copied(bytes, '\0');
  from.read(offset, std::as_writable_bytes(std::span(copied)));
  append(copied);
}

}  // namespace recurve
